"""`corro.torch` with tensors of a GPU, which all ranks may share."""

import pytest
import torch
from torch import nn

import corro.torch as hvd

DEVICE = "cuda:0"
HALVES = [torch.float16, torch.bfloat16]


def numbers(dtype, rank=0):
    generator = torch.Generator().manual_seed(rank)
    return torch.empty(hvd.size() * 17, 5).uniform_(-100, 100, generator=generator).to(dtype).to(DEVICE)


def reduce_by(kind, x, **factors):
    if kind == "allreduce":
        return [hvd.allreduce(x, op=hvd.Sum, **factors)]
    if kind == "in place":
        return [hvd.allreduce_(x.clone(), op=hvd.Sum, **factors)]
    if kind == "grouped":
        return hvd.grouped_allreduce([x, x], op=hvd.Sum, **factors)
    if kind == "reducescatter":
        return [hvd.reducescatter(x, op=hvd.Sum, **factors)]
    return hvd.grouped_reducescatter([x, x], op=hvd.Sum, **factors)


KINDS = ["allreduce", "in place", "grouped", "reducescatter", "grouped reducescatter"]


def mine(kind, whole):
    """What this rank gets of a reduced tensor."""
    return whole[hvd.rank() * 17 : hvd.rank() * 17 + 17] if "reducescatter" in kind else whole


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("factor", [0.3, 1 / 3, 7.77])
@pytest.mark.parametrize("kind", KINDS)
def test_factors_are_rounded_as_torch_does(kind, factor, dtype):
    x = numbers(dtype)
    rounded = torch.tensor(factor, dtype=dtype, device=DEVICE)
    # The same on all ranks, so that the sum is as many times one of them.
    for found in reduce_by(kind, x, prescale_factor=factor):
        torch.testing.assert_close(found, mine(kind, (x * rounded) * hvd.size()), rtol=0, atol=0)
    for found in reduce_by(kind, x, postscale_factor=factor):
        torch.testing.assert_close(found, mine(kind, (x * hvd.size()) * rounded), rtol=0, atol=0)


def test_ranks_on_different_devices_are_told():
    where = DEVICE if hvd.rank() == 0 else "cpu"
    for call in (hvd.allreduce, hvd.allgather, hvd.reducescatter, lambda x, name: hvd.broadcast(x, 0, name=name)):
        with pytest.raises(hvd.HorovodInternalError, match="CPU/GPU device selection"):
            call(torch.ones(4, device=where), name="mixed")
    assert hvd.allreduce(torch.ones(4, device=DEVICE), name="mixed").tolist() == [1.0] * 4


def test_gradients_are_final_when_backward_returns():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    scaler = torch.amp.GradScaler("cuda")
    for step in range(5):
        optimizer.zero_grad()
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(step * 10 + hvd.rank())).to(DEVICE)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    everyone = hvd.allgather_object([p.tolist() for p in net.parameters()])
    assert all(theirs == everyone[0] for theirs in everyone)
