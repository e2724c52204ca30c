"""Factors of 16-bit floats are rounded as torch does on the same device."""

from __future__ import annotations

import torch
from each import each
from gpu import DEVICE, ON_GPU

import corro.torch as hvd


def spread(dtype):
    """Numbers whose products must be rounded; the same on all ranks, so that the sum is as many times one of them."""
    generator = torch.Generator().manual_seed(0)
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


def mine(kind, whole):
    """What this rank gets of a reduced tensor."""
    return whole[hvd.rank() * 17 : hvd.rank() * 17 + 17] if "reducescatter" in kind else whole


@each(
    kind=["allreduce", "in place", "grouped", "reducescatter", "grouped reducescatter"],
    factor=[0.3, 1 / 3, 7.77],
    dtype=[torch.float16, torch.bfloat16, torch.float32],
)
def test_factors_are_rounded_as_torch_does(kind, factor, dtype):
    # Sums of more ranks are rounded on their way, in an order that is the plane's own. On the CPU Corro rounds once.
    if hvd.size() & (hvd.size() - 1) or not ON_GPU:
        return
    x = spread(dtype)
    rounded = torch.tensor(factor, dtype=dtype, device=DEVICE)
    for found in reduce_by(kind, x, prescale_factor=factor):
        torch.testing.assert_close(found, mine(kind, (x * rounded) * hvd.size()), rtol=0, atol=0)
    for found in reduce_by(kind, x, postscale_factor=factor):
        torch.testing.assert_close(found, mine(kind, (x * hvd.size()) * rounded), rtol=0, atol=0)


@each(factor=[0.3, 7.77])
def test_each_of_a_group_has_its_own_rounding(factor):
    if hvd.size() & (hvd.size() - 1) or not ON_GPU:
        return
    dtypes = [torch.bfloat16, torch.float32, torch.float16, torch.float64]
    group = [spread(dtype) for dtype in dtypes]
    for found, x in zip(hvd.grouped_allreduce(group, op=hvd.Sum, prescale_factor=factor), group, strict=True):
        rounded = torch.tensor(factor, dtype=x.dtype, device=DEVICE)
        torch.testing.assert_close(found, (x * rounded) * hvd.size(), rtol=0, atol=0)


@each(dtype=[torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_average_of_the_same_is_the_same(dtype):
    if hvd.size() & (hvd.size() - 1):
        return
    x = spread(dtype)
    torch.testing.assert_close(hvd.allreduce(x, op=hvd.Average), x, rtol=0, atol=0)
    large = x.repeat(5000, 1)
    torch.testing.assert_close(hvd.allreduce(large, op=hvd.Average), large, rtol=0, atol=0)
