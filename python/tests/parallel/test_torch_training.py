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


def large_training(shared, monkeypatch, drop):
    """Trains a model whose gradients are worth a place in shared memory; `drop` loses them as scripts do."""
    monkeypatch.setenv("CORRO_SHARED_GRADIENTS", "1" if shared else "0")
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(64, 3000), nn.Tanh(), nn.Linear(3000, 100))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    places = [p.grad.data_ptr() if p.grad is not None else None for p in net.parameters()]
    assert all(place is not None for place in places) == shared
    for step in range(6):
        if drop == "model" and step == 3:
            net.zero_grad()
        else:
            optimizer.zero_grad(**({} if drop != "keep" else {"set_to_none": False}))
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step * 100 + hvd.rank()))
        net(x).square().mean().backward()
        optimizer.step()
    if shared and drop != "model":
        assert [p.grad.data_ptr() for p in net.parameters()] == places
    return net.state_dict()


@pytest.mark.parametrize("drop", ["optimizer", "model", "keep"])
def test_gradients_in_shared_memory_give_the_same_bits(monkeypatch, drop):
    shared, private = (large_training(shared, monkeypatch, drop) for shared in (True, False))
    torch.testing.assert_close(shared, private, rtol=0, atol=0)


def test_gradients_that_cannot_be_shared_are_not(monkeypatch):
    monkeypatch.setenv("CORRO_SHARED_GRADIENTS", "1")
    net = model()
    hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), compression=hvd.Compression.fp16
    )
    assert all(p.grad is None for p in net.parameters())
    net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    assert all(p.grad is None for p in net.parameters())


def test_tensors_in_shared_memory():
    x = hvd.shared_empty(700, 1000)
    assert x.shape == (700, 1000)
    assert x.dtype == torch.float32
    for step in range(3):
        x.fill_(hvd.rank() + step)
        assert hvd.allreduce_(x, op=hvd.Sum, name="in shared memory") is x
        assert (x == sum(range(hvd.size())) + step * hvd.size()).all()
    # One rank's is elsewhere.
    y = torch.ones(700, 1000) if hvd.rank() == 0 else x.fill_(1)
    assert (hvd.allreduce(y, op=hvd.Sum) == hvd.size()).all()
    assert (hvd.allreduce_(y, op=hvd.Sum, name="in part") == hvd.size()).all()
    z = hvd.shared_empty((3, 0), dtype=torch.int64)
    assert z.shape == (3, 0)
    with pytest.raises(ValueError, match="not supported"):
        hvd.shared_empty(3, dtype=torch.complex64)
    hvd.shared_empty(5)
    del x, y
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2


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


def test_another_optimizer_for_the_same_model():
    net = model()
    for _ in range(2):
        # The one before is gone, and its hooks with it.
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(net, hvd.rank()).backward()
            optimizer.step()
    del optimizer
    loss_of(net, hvd.rank()).backward()
    loss_of(net, hvd.rank()).backward()


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
        hvd.broadcast_object(None, 0)
        optimizer.synchronize()
    else:
        hvd.broadcast_object(None, 0)
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
