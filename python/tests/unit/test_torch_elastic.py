"""`hvd.elastic` of torch in a world of one: what is saved, and what comes back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import corro.torch as hvd


@pytest.fixture(autouse=True)
def _world():
    hvd.init()
    yield
    hvd.shutdown()


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()


def held(state):
    """Everything the state's objects hold, as plain data."""
    optimizer = {k: v.tolist() for k, v in state.optimizer.state_dict()["state"].get(0, {}).items()}
    return [p.tolist() for p in state.model.parameters()], optimizer, state.optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("distributed", [False, True])
def test_what_is_restored_stays_as_it_was_saved(distributed):
    """torch's optimizers go on with the tensors they are given; a second failure must find the commit untouched."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, losses=[])
    step(model, optimizer)
    scheduler.step()
    state.losses.append(1.0)
    state.commit()
    committed = held(state)
    for _ in range(3):
        step(model, optimizer)
        scheduler.step()
        state.losses.append(2.0)
        assert held(state) != committed
        state.restore()
        assert held(state) == committed
        assert state.scheduler is scheduler
        assert (scheduler.last_epoch, state.losses) == (1, [1.0])


def test_a_new_object_takes_the_place_of_an_old_one():
    state = hvd.elastic.TorchState(nn.Linear(3, 1), epoch=0)
    with pytest.raises(AttributeError):
        _ = state.sampler
    new = nn.Linear(3, 1)
    state.model = new
    with torch.no_grad():
        new.weight.zero_()
    state.restore()
    assert state.model is new
    assert new.weight.abs().sum() > 0


def test_the_sampler_goes_back_with_the_model():
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.record_batch(0, 4)
    state.commit()
    sampler.record_batch(1, 4)
    state.restore()
    assert (sampler.processed_num, list(sampler)) == (4, [4, 5, 6, 7, 8, 9])
    # Begun again after a change of the ranks, the epoch goes on; ended, it begins anew.
    state.restore()
    sampler.set_epoch(0)
    assert list(sampler) == [4, 5, 6, 7, 8, 9]
    sampler.set_epoch(0)
    assert len(sampler) == 10


def test_samples_recorded_one_by_one():
    sampler = hvd.elastic.ElasticSampler(range(6), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.record_indices([0, torch.tensor(3)])
    state.commit()
    sampler.record_indices([1])
    state.restore()
    assert list(sampler) == [1, 2, 4, 5]
    with pytest.raises(ValueError, match="one of them"):
        sampler.record_batch(0, 1)
    sampler.set_epoch(1)
    sampler.record_batch(0, 1)
    with pytest.raises(ValueError, match="one of them"):
        sampler.record_indices([0])


def test_gradients_in_flight_are_dropped_when_a_state_is_restored():
    model = nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer)
    model(torch.ones(2, 3)).sum().backward()
    hvd.shutdown()
    hvd.init()
    state.restore()
    step(model, optimizer)


def test_own_handlers():
    from corro.torch.elastic import state as states

    class Counter:
        count = 0

    class Handler(states.StateHandler):
        def __init__(self, value):
            super().__init__(value)
            self.save()

        def save(self):
            self.saved = self.value.count

        def restore(self):
            self.value.count = self.saved

        def sync(self):
            pass

    before = states.get_handler_registry()
    states.set_handler_registry([*before, (Counter, Handler)])
    try:
        state = hvd.elastic.TorchState(counter=Counter())
        state.counter.count = 3
        state.restore()
        assert state.counter.count == 0
    finally:
        states.set_handler_registry(before)
