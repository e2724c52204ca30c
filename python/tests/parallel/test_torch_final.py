"""Gradients are final when `backward()` returns: what a script may do between backward and step."""

import contextlib
import time

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from training import loss_of, model

import corro.torch as hvd


@pytest.fixture(autouse=True, params=["0", "1"], ids=["together", "during backward"])
def _way(request, monkeypatch):
    monkeypatch.setenv("CORRO_OVERLAP", request.param)


def distributed(net, prefix="", **options):
    base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(base, net.named_parameters(prefix), **options)


def gradients(net):
    return {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}


def assert_equal_on_all_ranks(tensors):
    """To the last bit."""
    everyone = hvd.allgather_object({name: None if t is None else t.tolist() for name, t in tensors.items()})
    assert all(theirs == everyone[0] for theirs in everyone)


def one_is_slow():
    """The last rank comes late, so that nothing that the others have submitted can be done already."""
    hvd.barrier()
    if hvd.rank() == hvd.size() - 1:
        time.sleep(0.2)


def averaged(loss_of_rank, parameters):
    """The mean over the ranks of what each computes."""
    losses = sum(loss_of_rank(rank) for rank in range(hvd.size())) / hvd.size()
    return torch.autograd.grad(losses, parameters, allow_unused=True)


def test_gradients_are_reduced_when_backward_returns():
    net = model()
    distributed_optimizer = distributed(net)
    one_is_slow()
    loss_of(net, hvd.rank()).backward()
    found = gradients(net)
    wanted = averaged(lambda rank: loss_of(net, rank), list(net.parameters()))
    for grad, right in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(grad, right)
    distributed_optimizer.step()
    assert_equal_on_all_ranks(found)


def clipped(form, steps=4):
    net = model()
    optimizer = distributed(net)
    for step in range(steps):
        optimizer.zero_grad()
        if step == 1:
            one_is_slow()
        loss_of(net, hvd.rank()).backward()
        if form == "as with Horovod":
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        with optimizer.skip_synchronize() if form == "as with Horovod" else contextlib.nullcontext():
            optimizer.step()
    return net.state_dict()


def test_clipping_gives_the_same_bits_on_all_ranks_and_in_both_forms():
    as_with_ddp, as_with_horovod = clipped("as with DDP"), clipped("as with Horovod")
    torch.testing.assert_close(as_with_ddp, as_with_horovod, rtol=0, atol=0)
    assert_equal_on_all_ranks(as_with_ddp)


def test_only_the_last_of_several_passes_reduces():
    net = model()
    optimizer = distributed(net, backward_passes_per_step=2)
    loss_of(net, hvd.rank()).backward()
    own = torch.autograd.grad(loss_of(net, hvd.rank()), net[0].weight)[0]
    torch.testing.assert_close(net[0].weight.grad, own)
    one_is_slow()
    loss_of(net, hvd.rank()).backward()
    wanted = averaged(lambda rank: loss_of(net, rank) * 2, [net[0].weight])[0]
    torch.testing.assert_close(net[0].weight.grad, wanted)
    optimizer.step()
    assert_equal_on_all_ranks(net.state_dict())


class Heads(nn.Module):
    """A trunk that all losses go through, and heads of which a loss has one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Linear(4, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 1) for _ in range(3)])

    def loss(self, rank, head, through_trunk=True):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(rank))
        return self.heads[head](self.trunk(x) if through_trunk else x).square().mean()


def test_parameters_that_only_some_ranks_use():
    net = Heads()
    optimizer = distributed(net)
    for _ in range(3):
        optimizer.zero_grad()
        head = 0 if hvd.rank() == 0 else 1
        one_is_slow()
        net.loss(hvd.rank(), head).backward()
        wanted = averaged(lambda rank: net.loss(rank, 0 if rank == 0 else 1), list(net.parameters()))
        for p, right in zip(net.parameters(), wanted, strict=True):
            torch.testing.assert_close(p.grad, torch.zeros_like(p) if right is None else right)
        # What many scripts do here: it must not wait for a rank that has not been heard of yet.
        hvd.allreduce(torch.ones(1), name="a metric")
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()
    assert_equal_on_all_ranks(net.state_dict())


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_losses_with_layers_of_their_own(op):
    net = Heads()
    optimizer = distributed(net, op=getattr(hvd, op))
    factor = 1.0 if op == "Average" else hvd.size()
    for _ in range(3):
        optimizer.zero_grad()
        one_is_slow()
        net.loss(hvd.rank(), 0).backward()
        net.loss(hvd.rank(), 1, through_trunk=False).backward()
        wanted = averaged(
            lambda rank: (net.loss(rank, 0) + net.loss(rank, 1, through_trunk=False)) * factor, list(net.parameters())
        )
        for p, right in zip(net.parameters(), wanted, strict=True):
            torch.testing.assert_close(p.grad, torch.zeros_like(p) if right is None else right)
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()
    assert_equal_on_all_ranks(net.state_dict())


def test_a_loss_that_only_one_rank_has():
    net = Heads()
    optimizer = distributed(net)
    for step in range(4):
        optimizer.zero_grad()
        net.loss(hvd.rank(), 0).backward()
        # Another rank in each step; the others go on to the step at once.
        only = step % hvd.size()
        if hvd.rank() == only:
            net.loss(hvd.rank(), 2, through_trunk=False).backward()
        wanted = torch.autograd.grad(net.loss(only, 2, through_trunk=False), net.heads[2].weight)[0] / hvd.size()
        before = net.heads[2].weight.detach().clone()
        momentum = optimizer.state.get(net.heads[2].weight, {}).get("momentum_buffer")
        momentum = torch.zeros_like(before) if momentum is None else momentum.clone()
        optimizer.step()
        torch.testing.assert_close(net.heads[2].weight.detach(), before - 0.1 * (0.9 * momentum + wanted))
    assert_equal_on_all_ranks(net.state_dict())


def test_a_graph_that_is_kept_is_not_run_twice_by_accident():
    net = model()
    optimizer = distributed(net)
    loss = loss_of(net, hvd.rank())
    loss.backward(retain_graph=True)
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss.backward()
    optimizer.zero_grad()
    loss_of(net, hvd.rank()).backward()
    optimizer.step()
    assert_equal_on_all_ranks(net.state_dict())


def test_gradients_that_are_asked_for_reduce_nothing():
    net = model()
    optimizer = distributed(net)
    if hvd.rank() == 0:
        torch.autograd.grad(loss_of(net, 0), list(net.parameters()))
    # A penalty on gradients: backward through a backward.
    (slope,) = torch.autograd.grad(loss_of(net, hvd.rank()), net[0].weight, create_graph=True)
    (loss_of(net, hvd.rank()) + slope.square().sum()).backward()
    optimizer.step()
    loss_of(net, hvd.rank()).backward(create_graph=True)
    found = gradients(net)
    optimizer.zero_grad()
    assert_equal_on_all_ranks(found)
    assert_equal_on_all_ranks(net.state_dict())


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("every", [False, True], ids=["a part", "all of it"])
def test_checkpoints(use_reentrant, every):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = distributed(net)

    def loss(rank, kept):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(rank)).requires_grad_(True)
        run = (lambda part, x: checkpoint(part, x, use_reentrant=use_reentrant)) if kept else (lambda part, x: part(x))
        last = run(net[4:], run(net[2:4], run(net[:2], x))) if every else net[4:](run(net[2:4], net[:2](x)))
        return last.square().mean()

    for _ in range(2):
        optimizer.zero_grad()
        one_is_slow()
        loss(hvd.rank(), True).backward()
        for p, right in zip(
            net.parameters(), averaged(lambda rank: loss(rank, False), list(net.parameters())), strict=True
        ):
            torch.testing.assert_close(p.grad, right)
        optimizer.step()
    assert_equal_on_all_ranks(net.state_dict())


@pytest.mark.parametrize("nested", [False, True])
def test_checkpoints_of_all_that_has_parameters_beside_one_that_is_not_used(nested):
    """No parameter's gradient is made outside of a pass within the pass, and one of them never."""
    net = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(2, 2)])
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = distributed(net)

    def loss(rank, kept):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(rank)).requires_grad_(True)
        run = (lambda part, x: checkpoint(part, x, use_reentrant=True)) if kept else (lambda part, x: part(x))
        both = lambda x: run(net[1], run(net[0], x).tanh())  # noqa: E731
        return (run(both, x) if nested else both(x)).square().mean()

    for _ in range(2):
        optimizer.zero_grad()
        one_is_slow()
        loss(hvd.rank(), True).backward()
        wanted = averaged(lambda rank: loss(rank, False), list(net.parameters()))
        for p, right in zip(net.parameters(), wanted, strict=True):
            torch.testing.assert_close(p.grad, torch.zeros_like(p) if right is None else right)
        optimizer.step()
    assert_equal_on_all_ranks(net.state_dict())


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise FloatingPointError("in the middle of backward")


def test_an_exception_in_backward():
    # All parameters in one group, so that nothing is on its way when backward breaks.
    net = model()
    optimizer = distributed(net, groups=1)
    optimizer.zero_grad()
    x = torch.ones(1, 4)
    with pytest.raises(FloatingPointError):
        net[2](net[1](Breaks.apply(net[0](x)))).sum().backward()
    optimizer.zero_grad()
    loss_of(net, hvd.rank()).backward()
    found = gradients(net)
    optimizer.step()
    assert_equal_on_all_ranks(found)
    assert_equal_on_all_ranks(net.state_dict())


def test_gradients_that_are_dropped_without_a_step():
    net = model()
    optimizer = distributed(net)
    for drop in (optimizer.zero_grad, net.zero_grad, lambda: [setattr(p, "grad", None) for p in net.parameters()]):
        loss_of(net, hvd.rank()).backward()
        drop()
    loss_of(net, hvd.rank()).backward()
    found = gradients(net)
    for grad, right in zip(
        found.values(), averaged(lambda rank: loss_of(net, rank), list(net.parameters())), strict=True
    ):
        torch.testing.assert_close(grad, right)
    optimizer.step()
    assert_equal_on_all_ranks(net.state_dict())


def test_batches_that_only_add_up():
    net = model()
    optimizer = distributed(net)
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.no_sync():
            for _ in range(1 + hvd.rank()):
                loss_of(net, hvd.rank()).backward()
        one_is_slow()
        loss_of(net, hvd.rank()).backward()
        wanted = averaged(lambda rank: loss_of(net, rank) * (2 + rank), list(net.parameters()))
        for p, right in zip(net.parameters(), wanted, strict=True):
            torch.testing.assert_close(p.grad, right)
        optimizer.step()
    assert_equal_on_all_ranks(net.state_dict())


@pytest.mark.parametrize("form", ["as with DDP", "as with Horovod"])
def test_a_scaler_of_gradients_sees_them_reduced(form):
    net = model()
    optimizer = distributed(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    taken = 0
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(net, hvd.rank())
        # One rank's loss overflows: all must leave the step out.
        if step == 1 and hvd.rank() == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if form == "as with Horovod":
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        before = net[0].weight.detach().clone()
        with optimizer.skip_synchronize() if form == "as with Horovod" else contextlib.nullcontext():
            scaler.step(optimizer)
        scaler.update()
        taken += not torch.equal(before, net[0].weight)
    assert taken == 3
    assert_equal_on_all_ranks(net.state_dict())


def test_a_compiled_model():
    net = model()
    optimizer = distributed(net)
    compiled = torch.compile(net, backend="aot_eager")
    for _ in range(2):
        optimizer.zero_grad()
        one_is_slow()
        loss_of(compiled, hvd.rank()).backward()
        found = gradients(net)
        optimizer.step()
        assert_equal_on_all_ranks(found)
    assert_equal_on_all_ranks(net.state_dict())


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_options_keep_gradients_final(groups, compression):
    net = model()
    optimizer = distributed(net, groups=groups, compression=getattr(hvd.Compression, compression))
    one_is_slow()
    loss_of(net, hvd.rank()).backward()
    found = gradients(net)
    wanted = averaged(lambda rank: loss_of(net, rank), list(net.parameters()))
    for grad, right in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(grad, right, rtol=2e-2, atol=1e-3)
    optimizer.step()
    assert_equal_on_all_ranks(found)


def test_sparse_gradients_are_final_and_may_be_missing():
    net = nn.ModuleDict({"words": nn.Embedding(6, 3, sparse=True), "out": nn.Linear(3, 1)})
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        one_is_slow()
        x = net["words"](torch.tensor([hvd.rank(), 5])).sum(0)
        if step == 2 and hvd.rank() == 0:
            x = torch.ones(3)
        net["out"](x).sum().backward()
        dense = net["words"].weight.grad.to_dense()
        assert_equal_on_all_ranks({"words": dense, "out": net["out"].weight.grad})
        optimizer.step()
    assert_equal_on_all_ranks(net.state_dict())


def test_a_model_that_trains_in_turns():
    # The discriminator's hooks fire in the generator's pass as well.
    torch.manual_seed(0)
    generator, discriminator = nn.Linear(2, 4), nn.Linear(4, 1)
    optimizers = [distributed(generator, "generator"), distributed(discriminator, "discriminator")]
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(hvd.rank()))
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        discriminator(generator(x)).mean().backward()
        optimizers[step % 2].step()
    assert_equal_on_all_ranks({**generator.state_dict(), "d": discriminator.weight})


def test_optimizers_whose_gradients_come_in_another_order_on_each_rank():
    first, second = model(), model(seed=1)
    optimizers = [distributed(first, "first", groups=1), distributed(second, "second", groups=1)]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        one, other = (loss_of(net, hvd.rank()) for net in (first, second))
        # What comes last into the sum goes back first. The first step, in which ranks get to know each other, is alike.
        (one + other if step == 0 or hvd.rank() % 2 else other + one).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_equal_on_all_ranks({**first.state_dict(), **{f"second.{n}": p for n, p in second.state_dict().items()}})


def test_private_names_that_programs_reach_for():
    net = model()
    for op in (hvd.Average, hvd.Adasum):
        names = distributed(net, op=op)._parameter_names
        assert {name: p is dict(net.named_parameters())[name] for p, name in names.items()} == dict.fromkeys(
            dict(net.named_parameters()), True
        )
