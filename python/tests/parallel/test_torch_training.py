"""Training with `corro.torch`: the optimizer, and the mistakes that it catches, in each way it can reduce gradients."""

import copy
import warnings

import pytest
import torch
from torch import nn
from training import loss_of, model

import corro.torch as hvd

# How gradients are reduced: where each test is run in all of these ways, none needs a job of its own.
WAYS = {
    "together": {"CORRO_OVERLAP": "0"},
    "during backward": {"CORRO_OVERLAP": "1"},
    "in shared memory": {"CORRO_SHARED_GRADIENTS": "1"},
}


@pytest.fixture(autouse=True, params=WAYS)
def _way(request, monkeypatch):
    for name, value in WAYS[request.param].items():
        monkeypatch.setenv(name, value)


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


def test_what_may_stand_between_backward_and_step():
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    loss_of(net, hvd.rank()).backward()
    # Nothing is on its way any more, so gradients may be dropped, and a step needs no synchronize().
    optimizer.zero_grad()
    loss_of(net, hvd.rank()).backward()
    with optimizer.skip_synchronize():
        optimizer.step()
    loss_of(net, hvd.rank()).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_gradients_on_their_way_are_left_alone():
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), groups=4)
    # Outside of backward nobody waits for what a hook submits.
    for p in net.parameters():
        p.grad = torch.ones_like(p)
        optimizer._reducer.on_gradient(p)
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


@pytest.mark.parametrize("op", ["Average", "Adasum"])
@pytest.mark.parametrize("named", [False, True])
def test_parameters_that_are_trained_later(named, op):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    hvd.broadcast_parameters(net.state_dict(), 0)
    net[0].requires_grad_(False)
    first = nn.Sequential(net[0], net[1])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(first.parameters(), lr=0.1), first.named_parameters() if named else None, op=getattr(hvd, op)
    )
    for step in range(4):
        if step == 1:
            net[0].requires_grad_(True)
        if step == 2:
            optimizer.add_param_group({"params": list(net[2].parameters())})
        optimizer.zero_grad()
        loss_of(net, hvd.rank()).backward()
        optimizer.step()
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
