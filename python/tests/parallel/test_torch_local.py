"""Local SGD, DiLoCo and gossip with `corro.torch`: identities with what is known, and that models learn."""

import copy

import pytest
import torch
from torch import nn
from training import loss_of, model

import corro.torch as hvd


def train(wrap, steps=12, make=lambda net: torch.optim.SGD(net.parameters(), lr=0.1)):
    """Trains on this rank's batch. `wrap` is told the model and the optimizer; its result is given back with the model."""
    net = model(seed=3)
    optimizer = make(net)
    training = wrap(net, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net, hvd.rank()).backward()
        (getattr(training, "optimizer", optimizer)).step()
    return net, training


class Together:
    """Synchronous SGD: what the others are compared with."""

    def __init__(self, net, optimizer):
        self.optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())


def alone(steps, ranks):
    """What each rank's model is after so many steps by itself."""
    nets = []
    for rank in range(ranks):
        net = model(seed=3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(net, rank).backward()
            optimizer.step()
        nets.append(net)
    return nets


def mean_of(nets):
    states = [net.state_dict() for net in nets]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def assert_alike(net):
    for state in hvd.allgather_object(net.state_dict()):
        torch.testing.assert_close(state, net.state_dict(), rtol=0, atol=0)


def close(net, state):
    torch.testing.assert_close(dict(net.state_dict()), state, rtol=1e-5, atol=1e-6)


def test_meeting_after_each_step_is_synchronous():
    expected = train(Together)[0].state_dict()
    close(train(lambda *job: hvd.LocalSGD(*job, every=1))[0], expected)
    close(train(lambda *job: hvd.LocalSGD(*job, every=100, start=100))[0], expected)
    close(train(lambda *job: hvd.DiLoCo(*job, hvd.Nesterov(1, 0), every=1))[0], expected)
    close(train(lambda *job: hvd.LocalSGD(*job, every=100, hierarchy=hvd.global_process_set))[0], expected)
    # All ranks of this job are on one host.
    close(train(lambda *job: hvd.LocalSGD(*job, every=100, hierarchy="host"))[0], expected)


def test_averages_are_averages_of_what_ranks_did_alone():
    expected = mean_of(alone(6, hvd.size()))
    close(train(lambda *job: hvd.LocalSGD(*job, every=6), steps=6)[0], expected)
    close(train(lambda *job: hvd.DiLoCo(*job, hvd.Nesterov(1, 0), every=6), steps=6)[0], expected)


def test_the_outer_step_is_nesterovs():
    net, training = train(lambda *job: hvd.DiLoCo(*job, hvd.Nesterov(0.7, 0.9), every=6), steps=6)
    start, after = dict(model(seed=3).state_dict()), mean_of(alone(6, hvd.size()))
    # With a velocity of zero before: g + m g, times the rate.
    expected = {name: start[name] - 0.7 * 1.9 * (start[name] - after[name]) for name in start}
    close(net, expected)
    assert_alike(net)
    assert training.steps == 6


def test_fragments_take_turns_and_come_later():
    how = {"every": 4, "fragments": 2, "delay": 1, "alpha": 0.0}
    start = dict(model(seed=3).state_dict())
    net, training = train(lambda *job: hvd.DiLoCo(*job, hvd.Nesterov(1, 0), **how), steps=2)
    if hvd.size() > 1:
        assert any(not torch.equal(a, b) for a, b in zip(*all_first(net), strict=True)), "the first is on its way"
    # At step 3 it has come: the first fragment is what ranks had at step 2, averaged; the other is each rank's own.
    net, training = train(lambda *job: hvd.DiLoCo(*job, hvd.Nesterov(1, 0), **how), steps=3)
    first = all_first(net)
    assert all(torch.equal(a, b) for a, b in zip(*first, strict=True))
    torch.testing.assert_close(first[0][0], mean_of(alone(2, hvd.size()))["0.weight"], rtol=1e-5, atol=1e-6)
    training.settle()
    assert_alike(net)
    assert not torch.equal(net.state_dict()["0.weight"], start["0.weight"])


def all_first(net):
    """The first parameters of the first and the last rank."""
    states = hvd.allgather_object([net[0].weight.detach().clone()])
    return states[0], states[-1]


def test_whoever_keeps_everything_never_meets():
    net, _ = train(lambda *job: hvd.DiLoCo(*job, hvd.Nesterov(1, 0), every=2, alpha=1.0), steps=6)
    close(net, dict(alone(6, hvd.size())[hvd.rank()].state_dict()))


TEACHER = torch.randn(4, 3, generator=torch.Generator().manual_seed(5))


def learn(wrap, steps=240):
    """Learns from a teacher, each rank with data of its own; the loss of rank 0's model at the end."""
    net = model(seed=1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    training = wrap(net, optimizer)
    data = torch.Generator().manual_seed(hvd.rank())
    for _ in range(steps):
        x = torch.randn(16, 4, generator=data)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), torch.tanh(x @ TEACHER)).backward()
        getattr(training, "optimizer", optimizer).step()
    if hasattr(training, "settle"):
        training.settle()
        assert_alike(net)
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        return nn.functional.mse_loss(net(x), torch.tanh(x @ TEACHER)).item()


def test_models_learn_with_few_bytes():
    plain = learn(Together)
    how = {"every": 12, "fragments": 4, "delay": 1, "alpha": 0.2}
    for code in (None, "int8 inside=yes", "int4 inside=yes"):
        loss = learn(lambda *job, code=code: hvd.DiLoCo(*job, compression=code, name=f"learn {code}", **how))
        assert loss < 1.5 * plain + 0.02, code
    assert learn(hvd.Gossip) < 1.5 * plain + 0.02
    assert learn(lambda *job: hvd.LocalSGD(*job, every=12)) < 1.5 * plain + 0.02


@pytest.mark.parametrize("graph", ["exponential", "ring", "random"])
def test_gossip_keeps_the_mean_and_finds_it(graph):
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, float(hvd.rank()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    training = hvd.Gossip(net, optimizer, graph=graph, seed=1)
    mean = (hvd.size() - 1) / 2
    net.weight.grad = torch.zeros(1, 1)
    for step in range(40):
        optimizer.step()
        core = training._core
        held = torch.tensor([net.weight.item() * core.weight, core.weight])
        sums = hvd.allreduce(held, op=hvd.Sum)
        assert sums.tolist() == pytest.approx([mean * hvd.size(), hvd.size()], rel=1e-5), f"step {step}"
        if graph == "exponential" and hvd.size() in (2, 4) and step + 1 >= hvd.size() // 2:
            assert net.weight.item() == pytest.approx(mean, abs=1e-6)
    assert net.weight.item() == pytest.approx(mean, abs=0.05 * hvd.size())


def test_it_goes_on_where_it_was_saved():
    how = {"every": 4, "fragments": 2}
    straight, _ = train(lambda *job: hvd.DiLoCo(*job, **how), steps=10)
    net = model(seed=3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    training = hvd.DiLoCo(net, optimizer, **how)
    for step in range(10):
        if step == 5:
            saved, weights = copy.deepcopy(training.state_dict()), copy.deepcopy(net.state_dict())
            training.remove()
            net = model(seed=4)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            training = hvd.DiLoCo(net, optimizer, **how)
            net.load_state_dict(weights)
            training.load_state_dict(saved)
        optimizer.zero_grad()
        loss_of(net, hvd.rank()).backward()
        optimizer.step()
    close(net, dict(straight.state_dict()))


def test_mistakes_are_named():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for wrong, message in [
        ({"every": 1, "fragments": 2}, "need 2 or more"),
        ({"every": 4, "fragments": 2, "delay": 2}, "within 2 steps"),
        ({"fragments": 9}, "1 to 4 fragments"),
        ({"alpha": 2}, "alpha must be between"),
        ({"compression": hvd.Compression.fp16}, "that the engine does"),
    ]:
        with pytest.raises(ValueError, match=message):
            hvd.DiLoCo(net, optimizer, **wrong)
    with pytest.raises(ValueError, match="exponential, ring, random"):
        hvd.Gossip(net, optimizer, graph="star")
    with pytest.raises(ValueError, match="every must be 1"):
        hvd.LocalSGD(net, optimizer, every=0)
    with pytest.raises(ValueError, match="lr must"):
        hvd.Nesterov(0)
