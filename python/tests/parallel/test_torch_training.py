"""Training with `corro.torch`: optimizers, state, batch normalisation, elastic state, checks of mistakes."""

import copy
import itertools
import warnings

import pytest
import torch
from torch import nn

import corro.torch as hvd
from corro._front.checks import TrainingMistake


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(6, 4, generator=generator), torch.randn(6, 3, generator=generator)


def loss_of(net, rank):
    x, y = batch(rank)
    return nn.functional.mse_loss(net(x), y)


def trained_alone(steps=3, op_factor=1.0, **options):
    """What one process gets that sees all ranks' batches."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(net, rank) for rank in range(hvd.size())) / hvd.size() * op_factor).backward()
        optimizer.step()
    return net


def assert_same(net, other):
    torch.testing.assert_close(dict(net.state_dict()), dict(other.state_dict()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"groups": "lists"},
        {"gradient_predivide_factor": 2.0},
        {"named_parameters": None},
    ],
    ids=str,
)
def test_distributed_training_equals_training_alone(options):
    net = model()
    options = {"named_parameters": list(net.named_parameters()), **options}
    if options.get("groups") == "lists":
        parameters = list(net.parameters())
        options["groups"] = [parameters[:1], parameters[2:]]
    base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(base, **options)
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert optimizer.param_groups is base.param_groups
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(net, hvd.rank()).backward()
        optimizer.step()
    assert_same(net, trained_alone())


def test_sum_and_compression():
    net = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        net.named_parameters(),
        hvd.Compression.fp16,
        op=hvd.Sum,
    )
    loss_of(net, hvd.rank()).backward()
    optimizer.step()
    alone = trained_alone(steps=1, op_factor=hvd.size())
    torch.testing.assert_close(dict(net.state_dict()), dict(alone.state_dict()), rtol=1e-2, atol=1e-3)


def test_several_backward_passes_per_step():
    net = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), net.named_parameters(), backward_passes_per_step=2
    )
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            (loss_of(net, hvd.rank()) / 2).backward()
        optimizer.step()
    assert_same(net, trained_alone())
    for _ in range(2):
        loss_of(net, hvd.rank()).backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss_of(net, hvd.rank()).backward()
    optimizer.synchronize()
    optimizer.set_backward_passes_per_step(1)
    loss_of(net, hvd.rank()).backward()
    optimizer.step()


def test_clipping_with_skip_synchronize():
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    loss_of(net, hvd.rank()).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.skip_synchronize():
            optimizer.step()
    norm = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
    assert norm <= 0.011
    loss_of(net, hvd.rank()).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


def test_mistakes_with_the_optimizer_are_caught():
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    loss_of(net, hvd.rank()).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with optimizer.skip_synchronize(), pytest.raises(AssertionError, match="synchronize"):
        optimizer.step()
    optimizer.step()
    optimizer.zero_grad()


def test_wrong_arguments_of_the_optimizer():
    net = model()

    def make(**options):
        return hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), **options)

    named = list(net.named_parameters())
    for options in (
        {"named_parameters": net.parameters()},
        {"named_parameters": [*named, named[0]]},
        {"named_parameters": named[1:]},
        {"backward_passes_per_step": 0},
        {"groups": 0},
        {"groups": [["not a tensor"]]},
        {"groups": [[named[0][1]], [named[0][1]]]},
        {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
    ):
        with pytest.raises(ValueError, match=r"."):
            make(**options)
    with pytest.warns(DeprecationWarning):
        make(num_groups=1)


def test_parameters_without_a_gradient_and_frozen_ones():
    net = nn.ModuleDict({"used": nn.Linear(2, 2), "sometimes": nn.Linear(2, 2), "frozen": nn.Linear(2, 2)})
    net["frozen"].requires_grad_(False)
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    x = torch.ones(1, 2)
    y = net["used"](x).sum()
    if hvd.rank() == 0:
        y = y + net["sometimes"](x).sum()
    y.backward()
    optimizer.step()
    torch.testing.assert_close(net["sometimes"].bias.grad, torch.full((2,), 1 / hvd.size()))
    states = hvd.allgather_object({name: p.tolist() for name, p in net.state_dict().items()})
    assert all(state == states[0] for state in states)


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients(sparse_as_dense):
    torch.manual_seed(1)
    net = nn.Embedding(hvd.size() + 2, 3, sparse=True)
    start = net.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), sparse_as_dense=sparse_as_dense
    )
    net(torch.tensor([0, hvd.rank() + 1])).sum().backward()
    optimizer.step()
    change = start - net.weight.detach()
    wanted = torch.zeros_like(start)
    wanted[0] = 1.0
    wanted[1 : hvd.size() + 1] = 1 / hvd.size()
    torch.testing.assert_close(change, wanted)


def test_a_closure_and_a_scheduler():
    net = model()
    base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(base, 1, gamma=1.0)
    optimizer = hvd.DistributedOptimizer(base, net.named_parameters())

    def closure():
        optimizer.zero_grad()
        loss = loss_of(net, hvd.rank())
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    scheduler.step()
    assert_same(net, trained_alone())


def test_a_scheduler_of_the_original_optimizer_reaches_all_ranks():
    net = model()
    base = torch.optim.Adam(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(base, 0.5)
    optimizer = hvd.DistributedOptimizer(base, net.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, 0)
    loss_of(net, hvd.rank()).backward()
    optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.state is base.state


def test_adasum_optimizer():
    net = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), op=hvd.Adasum
    )
    with pytest.raises(AssertionError), optimizer.skip_synchronize():
        pass
    first = None
    for _ in range(15):
        optimizer.zero_grad()
        loss = loss_of(net, hvd.rank())
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    assert hvd.allreduce(loss.detach()).item() < hvd.allreduce(torch.tensor(first)).item()
    states = hvd.allgather_object({name: p.tolist() for name, p in net.state_dict().items()})
    assert all(state == states[0] for state in states)


def test_an_optimizer_of_some_ranks():
    some = hvd.add_process_set([0])
    net = model(seed=hvd.rank())
    before = copy.deepcopy(net.state_dict())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), process_set=some
    )
    loss_of(net, hvd.rank()).backward()
    optimizer.step()
    assert not torch.equal(before["0.weight"], net.state_dict()["0.weight"])
    hvd.remove_process_set(some)


OPTIMIZERS = {
    "SGD": {"lr": 0.1},
    "Adam": {},
    "AdamW": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "Adagrad": {},
    "Adadelta": {},
    "RMSprop": {"momentum": 0.9},
    "Rprop": {},
    "ASGD": {},
    "Adafactor": {},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("everyone_has_state", [False, True])
def test_broadcast_of_optimizer_state(name, everyone_has_state):
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    net = model(seed=hvd.rank())
    options = {"lr": 0.01 * (hvd.rank() + 1)} if name != "SGD" else {"lr": 0.1 * (hvd.rank() + 1), "momentum": 0.9}
    optimizer = getattr(torch.optim, name)(net.parameters(), **{**OPTIMIZERS[name], **options})
    if everyone_has_state or hvd.rank() == 0:
        loss_of(net, hvd.rank()).backward()
        optimizer.step()
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    states = hvd.allgather_object(optimizer.state_dict())
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=0, atol=0, equal_nan=True)
    assert optimizer.param_groups[0]["lr"] == (0.1 if name == "SGD" else 0.01)


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


def test_checks_find_parameters_that_were_not_broadcast(monkeypatch):
    monkeypatch.setenv("CORRO_CHECKS", "1")
    net = model(seed=hvd.rank())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    loss_of(net, hvd.rank()).backward()
    with pytest.raises(TrainingMistake, match="broadcast_parameters"):
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())


def test_checks_find_equal_data(monkeypatch):
    monkeypatch.setenv("CORRO_CHECKS", "1")
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    loss_of(net, 0).backward()
    with pytest.warns(RuntimeWarning, match="same data"):
        optimizer.step()
    optimizer.zero_grad()
    loss_of(net, hvd.rank()).backward()
    optimizer.step()


def test_checks_find_different_models(monkeypatch):
    monkeypatch.setenv("CORRO_CHECKS", "1")
    net = nn.Linear(2 + hvd.rank(), 1)
    with pytest.raises(TrainingMistake, match="different models"):
        hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
