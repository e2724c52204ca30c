"""Rules of elastic training that need no job: progress, states, the loop, samplers."""

from __future__ import annotations

import itertools
import random

import pytest

import corro
from corro._errors import HorovodInternalError, NotInitializedError, NotRetryableError
from corro._front import elastic
from corro._front.elastic import ADDED, REMOVED, ObjectState, State, run_fn
from corro._front.sampler import Order, samples_each, share


def alone(**values):
    return ObjectState(lambda value: value, lambda: 0, **values)


@pytest.fixture
def reported(monkeypatch):
    """What the driver would be told."""
    numbers = []
    monkeypatch.setattr(elastic._native, "set_progress", numbers.append)
    monkeypatch.setattr(elastic._native, "epoch", lambda: len(numbers) + 1)
    return numbers


def test_object_state_goes_back_to_what_was_saved():
    state = alone(epoch=1, history=[1, [2]], best={"loss": 3.0})
    state.epoch = 2
    state.history[1].append(3)
    state.best["loss"] = 0.0
    state.restore()
    assert (state.epoch, state.history, state.best) == (1, [1, [2]], {"loss": 3.0})
    # What was restored is a copy too: a second failure finds the same.
    state.history.append(9)
    state.restore()
    assert state.history == [1, [2]]
    state.epoch = 3
    state.commit()
    state.epoch = 4
    state.restore()
    assert state.epoch == 3
    with pytest.raises(NotImplementedError):
        State(lambda value: value, lambda: 0).save()


def test_object_state_sends_what_it_holds_now():
    sent = []
    state = ObjectState(lambda value: sent.append(dict(value)) or {**value, "batch": 7}, lambda: 0, epoch=1, batch=0)
    state.epoch = 2
    state.sync()
    assert sent == [{"epoch": 2, "batch": 0}]
    assert (state.epoch, state.batch) == (2, 7)
    state.batch = 8
    state.restore()
    assert state.batch == 7


def test_a_sync_that_is_interrupted_leaves_what_was_there():
    def lost(value):
        raise HorovodInternalError("lost")

    state = ObjectState(lost, lambda: 0, epoch=1)
    state.epoch = 5
    with pytest.raises(HorovodInternalError):
        state.sync()
    state.restore()
    assert state.epoch == 1


def test_every_news_of_hosts_counts():
    state = alone()
    for update, skip_sync in ((REMOVED, True), (ADDED, False), (REMOVED | ADDED, False)):
        # Twice in the same second, as far as the driver's clock goes.
        state.on_hosts_updated(10, update)
        with pytest.raises(corro.HostsUpdatedInterrupt) as caught:
            state.check_host_updates()
        assert caught.value.skip_sync == skip_sync
        state.check_host_updates()
    called = []
    state.register_reset_callbacks([lambda: called.append(1), lambda: called.append(2)])
    state.on_hosts_updated(10, ADDED)
    state.on_reset()
    state.check_host_updates()
    assert called == [1, 2]


def test_the_drivers_news_need_no_listener(monkeypatch):
    monkeypatch.setattr(elastic._native, "host_changes", lambda: ADDED)
    with pytest.raises(corro.HostsUpdatedInterrupt):
        alone().commit()


def test_progress_orders_states(reported):
    """Later epochs beat earlier ones, more commits beat fewer, and what is held beats what was committed."""
    state = alone(epoch=0)
    state.commit()
    assert reported == [], "a state that was never synced is no state"
    state._begin(skip_sync=False)
    begun = reported[-1]
    state.commit()
    committed = reported[-1]
    state._interrupted()
    interrupted = reported[-1]
    state._failed()
    failed = reported[-1]
    state._interrupted()
    state.commit()
    again = reported[-1]
    state._begin(skip_sync=True)
    assert 0 < begun < committed == failed < interrupted < again < reported[-1]


def test_run_starts_over(reported):
    state = alone(batch=0)
    begun, resets = [], []

    def train(state):
        begun.append(state.batch)
        state.batch += 1
        if len(begun) == 1:
            raise HorovodInternalError("lost")
        if len(begun) == 2:
            state.commit()
            state.batch += 1
            raise corro.HostsUpdatedInterrupt(skip_sync=True)
        return state.batch

    assert run_fn(train, lambda: resets.append(1))(state) == 3
    # From the last commit after a failure, from where it was after a change of hosts.
    assert begun == [0, 0, 2]
    assert resets == [1, 1]


def test_run_starts_over_when_starting_over_fails(reported):
    state, begun, failures = alone(batch=0), [], []

    def fail_once():
        if not failures:
            failures.append(1)
            raise HorovodInternalError("another one lost")

    state.register_reset_callbacks([fail_once])

    def train(state):
        begun.append(state.batch)
        if len(begun) == 1:
            raise HorovodInternalError("lost")

    run_fn(train, lambda: None)(state)
    assert begun == [0, 0]


@pytest.mark.parametrize("error", [NotRetryableError, NotInitializedError, ValueError, KeyboardInterrupt, SystemExit])
def test_run_passes_on_what_stays(error, reported):
    def train(state):
        raise error("no use")

    with pytest.raises(error):
        run_fn(train, lambda: pytest.fail("started over"))(alone())


def test_what_is_left_of_an_epoch():
    everything = Order(10, shuffle=True).left(3, 0)
    assert sorted(everything) == list(range(10))
    expected = list(range(10))
    random.Random(3).shuffle(expected)
    assert everything == expected, "the order is Horovod's"
    order = Order(10, shuffle=True)
    assert order.left(3, 4) == everything[4:]
    assert order.left(4, 0) != everything
    assert order.left(3, 0, {everything[0], everything[5]}) == everything[1:5] + everything[6:]
    assert Order(10, shuffle=False).left(3, 8) == [8, 9]


def test_shares():
    for length, ranks in itertools.product(range(12), range(1, 6)):
        left = list(range(length))
        padded = [share(left, rank, ranks, pad=True) for rank in range(ranks)]
        assert {len(part) for part in padded} == {samples_each(length, ranks)}
        assert set(itertools.chain(*padded)) == set(left)
        exact = [share(left, rank, ranks, pad=False) for rank in range(ranks)]
        assert sorted(itertools.chain(*exact)) == left
    assert share([1, 2, 3], 4, 5, pad=True) == [2]


@pytest.mark.parametrize("seed", range(30))
def test_every_sample_once_whatever_the_ranks_do(seed, monkeypatch):
    """A model of the ranks: they work, are interrupted, lose what they did not commit, and become more or fewer."""
    torch_sampler = pytest.importorskip("corro.torch.elastic.sampler")
    chance = random.Random(seed)
    ranks, batch = chance.randint(1, 5), chance.randint(1, 4)
    monkeypatch.setattr(torch_sampler.basics, "is_initialized", lambda: True)
    monkeypatch.setattr(torch_sampler.basics, "size", lambda: ranks)
    me = [0]
    monkeypatch.setattr(torch_sampler.basics, "rank", lambda: me[0])
    length = chance.randint(0, 60)
    saved, used = {"epoch": 0, "processed_num": 0}, []
    while saved["epoch"] < 3:
        shares = []
        for me[0] in range(ranks):
            sampler = torch_sampler.ElasticSampler(range(length), seed=seed, pad=False)
            sampler.load_state_dict(saved)
            sampler.set_epoch(saved["epoch"])  # as programs do that say it when they begin an epoch
            shares.append(list(sampler))
        uncommitted = []
        for at in range(0, max(map(len, shares)), batch):
            uncommitted += itertools.chain(*(part[at : at + batch] for part in shares))
            sampler.record_batch(at, batch)
            if chance.random() < 0.4:
                used, uncommitted, saved = used + uncommitted, [], sampler.state_dict()
            if chance.random() < 0.2:
                break
        else:
            assert sorted(used + uncommitted) == list(range(length))
            used = []
            sampler.set_epoch(saved["epoch"] + 1)
            saved = sampler.state_dict()
        ranks = chance.randint(1, 5)
