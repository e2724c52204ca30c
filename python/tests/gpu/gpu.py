"""What the cases for torch share: where tensors lie, and which numbers they hold.

Nothing here needs more than torch: machines with GPUs have little else. `CORRO_TEST_DEVICE=cpu` runs the same cases without
a GPU, to see whether the cases themselves are right.
"""

from __future__ import annotations

import os
from typing import Any

import torch

import corro.torch as hvd

DEVICE = torch.device(os.environ.get("CORRO_TEST_DEVICE", "cuda:0"))
ON_GPU = DEVICE.type == "cuda"
# The plane that is asked for; empty if none is.
PLANE = os.environ.get("CORRO_GPU_PLANE", "")

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS]


def numbers(dtype: torch.dtype, *shape: int, rank: int | None = None) -> torch.Tensor:
    """Small whole numbers, exact in every type and in sums of many ranks; on the CPU. The same for the same rank."""
    rank = hvd.rank() if rank is None else rank
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


def everyone(dtype: torch.dtype, *shape: int) -> list[torch.Tensor]:
    """What all ranks have, by rank; on the CPU."""
    return [numbers(dtype, *shape, rank=rank) for rank in range(hvd.size())]


def reduced(op: Any, tensors: list[torch.Tensor]) -> torch.Tensor:
    """What a reduction of exact numbers gives: computed with 64 bits, on the CPU."""
    wide = torch.stack([x.to(torch.float64 if x.dtype.is_floating_point else torch.int64) for x in tensors])
    if op is hvd.Min:
        result = wide.min(0).values
    elif op is hvd.Max:
        result = wide.max(0).values
    elif op is hvd.Product:
        result = wide.prod(0)
    elif op is hvd.Average:
        result = wide.sum(0) / len(tensors)
        if not tensors[0].dtype.is_floating_point:
            result = result.trunc()
    else:
        result = wide.sum(0)
    return result.to(tensors[0].dtype)


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """The same numbers, to the bit, and `found` where it should be."""
    assert found.device.type == DEVICE.type, f"the result is on {found.device}"
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.cpu(), wanted.cpu(), rtol=0, atol=0)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """As many as rounding once more allows."""
    assert found.device.type == DEVICE.type, f"the result is on {found.device}"
    torch.testing.assert_close(found.cpu(), wanted.cpu())


def serves(op: Any = None, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the plane that is asked for can serve that; where none is asked for, another one does."""
    if PLANE == "nccl":
        return op is not hvd.Adasum and (op is None or dtype not in (torch.int16, torch.bool))
    return not (PLANE == "cuda-ipc" and op is hvd.Adasum)
