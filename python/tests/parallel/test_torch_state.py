"""The state of a training with `corro.torch`: optimizers' state, batch normalisation, elastic state."""

import copy
import itertools

import pytest
import torch
from torch import nn
from training import loss_of, model

import corro.torch as hvd

# All that this torch has, with what they need to work here.
NO_STATE_TO_SEND = ("Optimizer", "LBFGS")
OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in NO_STATE_TO_SEND
)
OPTIONS = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.9}, "Adam": {"amsgrad": True, "weight_decay": 0.1}}


def an_optimizer(name, rate):
    """Its parameters differ from rank to rank, and so does its learning rate."""
    if name == "SparseAdam":
        net = nn.Embedding(4, 3, sparse=True)
    elif name == "Muon":
        net = nn.Linear(4, 3, bias=False)
    else:
        net = model(seed=hvd.rank())
    return net, getattr(torch.optim, name)(net.parameters(), lr=rate * (hvd.rank() + 1), **OPTIONS.get(name, {}))


def a_step(net, optimizer):
    if isinstance(net, nn.Embedding):
        net(torch.tensor([hvd.rank() % 4, 1])).sum().backward()
    else:
        net(torch.full((2, 4), float(hvd.rank() + 1))).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("who", ["nobody", "root", "the others", "everyone"])
def test_broadcast_of_optimizer_state(name, who):
    root = hvd.size() - 1
    net, optimizer = an_optimizer(name, 0.01)
    if {"nobody": False, "root": hvd.rank() == root, "the others": hvd.rank() != root, "everyone": True}[who]:
        a_step(net, optimizer)
    hvd.broadcast_parameters(net.state_dict(), root_rank=root)
    before = copy.deepcopy(net.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root_rank=root, model=net)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    states = hvd.allgather_object(optimizer.state_dict())
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=0, atol=0, equal_nan=True)
    assert states[0]["state"], "every one of these optimizers has a state to send"
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * (root + 1))
    # And it works on.
    a_step(net, optimizer)


def test_broadcast_of_optimizer_state_without_any():
    net = model(seed=hvd.rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * (hvd.rank() + 1))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    embedding = nn.Embedding(4, 3, sparse=True)
    hvd.broadcast_optimizer_state(torch.optim.SparseAdam(embedding.parameters()), root_rank=0)
    # Through DistributedOptimizer the step that makes the state must not wait for other ranks: only one makes it here.
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters()), net.named_parameters())
    if hvd.rank() == 0:
        loss_of(net, 0).backward()
    else:
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
    optimizer.synchronize()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert len(optimizer.state) == len(list(net.parameters()))


def test_wrong_arguments_of_broadcasts():
    net = model()
    with pytest.raises(ValueError, match="invalid params"):
        hvd.broadcast_parameters(net.named_parameters(), 0)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(net.parameters()), 0)
    hvd.broadcast_parameters(list(net.named_parameters()), 0)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6), (2, 3, 4, 5)], ids=str)
def test_sync_batch_norm_equals_one_large_batch(shape):
    whole = torch.randn(hvd.size(), *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weights = torch.randn(hvd.size(), *shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    alone, ours = kind(3, dtype=torch.float64), hvd.SyncBatchNorm(3).double()
    for layer in (alone, ours):
        nn.init.uniform_(layer.weight, generator=torch.Generator().manual_seed(5))
    big = whole.flatten(0, 1).requires_grad_()
    wanted = alone(big)
    (wanted * weights.flatten(0, 1)).sum().backward()
    mine = whole[hvd.rank()].clone().requires_grad_()
    got = ours(mine)
    (got * weights[hvd.rank()]).sum().backward()
    rows = slice(hvd.rank() * shape[0], (hvd.rank() + 1) * shape[0])
    torch.testing.assert_close(got, wanted[rows])
    torch.testing.assert_close(mine.grad, big.grad[rows])
    torch.testing.assert_close(ours.running_mean, alone.running_mean)
    torch.testing.assert_close(ours.running_var, alone.running_var)
    torch.testing.assert_close(hvd.allreduce(ours.weight.grad, op=hvd.Sum), alone.weight.grad)
    ours.eval()
    alone.eval()
    torch.testing.assert_close(ours(whole[0]), alone(whole[0]))
    with pytest.raises(ValueError, match="2D"):
        ours(torch.zeros(3))


def test_elastic_state():
    net = model(seed=hvd.rank())
    optimizer = torch.optim.Adam(net.parameters())
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    state = hvd.elastic.TorchState(net, optimizer, sampler=sampler, epoch=hvd.rank() + 5)
    state.sync()
    assert state.epoch == 5
    weights = hvd.allgather_object(net.state_dict()["0.weight"].tolist())
    assert all(weight == weights[0] for weight in weights)
    kept = copy.deepcopy(net.state_dict())
    state.epoch = 9
    with torch.no_grad():
        net[0].weight.add_(1)
    state.restore()
    assert state.epoch == 5
    torch.testing.assert_close(net.state_dict()["0.weight"], kept["0.weight"])
    sampler.record_batch(0, 1)
    state.commit()
    sampler.set_epoch(3)
    state.restore()
    assert (sampler.epoch, sampler.processed_num) == (0, hvd.size())


def test_elastic_sampler_covers_everything():
    sampler = hvd.elastic.ElasticSampler(range(11), seed=7)
    seen = hvd.allgather_object(list(sampler))
    assert {len(part) for part in seen} == {len(sampler)}
    assert set(itertools.chain(*seen)) == set(range(11))


def test_elastic_run_restores_after_an_error():
    state = hvd.elastic.TorchState(batch=0)
    calls = []

    from corro._front.elastic import run_fn

    def train(state):
        calls.append(state.batch)
        state.batch += 1
        if len(calls) == 1:
            raise hvd.HorovodInternalError("lost")
        return state.batch

    resets = []
    assert run_fn(train, lambda: resets.append(1))(state) == 1
    assert calls == [0, 0]
    assert resets == [1]
