"""Tensors in memory that the ranks of a host share. Operations in place reduce them where they are, without a copy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from corro import _native
from corro._front.process_sets import ProcessSet, global_process_set
from corro.torch._tensors import DTYPES

# Bytes at whose multiples tensors begin: a line of the cache.
LINE = 64


def shared_empty(
    *size: Any, dtype: torch.dtype | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """An uninitialised tensor on the CPU, as `torch.empty` makes it, in memory that the ranks of the host share.

    `allreduce_` of such a tensor (1 MiB and more) copies nothing: about three times as fast as from private memory. All
    ranks of the set must call this, in the same order and with the same size. Where they are not all on one host it is
    an ordinary tensor. For a few large tensors that live long; each call makes memory of its own. Raises `ValueError` for a
    dtype that can't be reduced.

    Example:
        >>> tensor = hvd.shared_empty(2, dtype=torch.float32).fill_(1)
        >>> hvd.allreduce_(tensor, op=hvd.Sum)
        tensor([2., 2.])
    """
    shape = torch.Size(size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size)
    dtype = dtype or torch.get_default_dtype()
    if dtype not in DTYPES:
        raise ValueError(f"a tensor of {dtype} is not supported.")
    (tensor,) = _cut([(shape, dtype)], process_set) or [torch.empty(shape, dtype=dtype)]
    return tensor


def share_gradients(parameters: Iterable[torch.Tensor], process_set: ProcessSet) -> list[torch.Tensor]:
    """Gives the parameters gradients of zeros in shared memory, and returns these; none where that is not possible.

    The same decision on all ranks, which have the same model; all must call this.
    """
    parameters = list(parameters)
    if any(not _can_share(p) for p in parameters):
        return []
    gradients = _cut([(p.shape, p.dtype) for p in parameters], process_set)
    for p, gradient in zip(parameters, gradients, strict=False):
        p.grad = gradient.zero_() if p.grad is None else gradient.copy_(p.grad)
    return gradients


def _can_share(p: torch.Tensor) -> bool:
    # A gradient gets the strides of its parameter, and in the pool there are plain ones only.
    return p.is_cpu and p.layout is torch.strided and p.is_contiguous() and p.dtype in DTYPES


def _cut(wanted: list[tuple[torch.Size, torch.dtype]], process_set: ProcessSet) -> list[torch.Tensor]:
    """Tensors of these shapes, one behind the other in memory made for them; none where ranks cannot share memory."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in wanted]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // LINE) * LINE)
    if starts[-1] == 0:
        return []
    memory = _native.shared_memory(process_set.process_set_id, starts[-1])
    if memory is None:
        return []
    whole = from_dlpack(memory.__dlpack__())
    return [
        whole[start : start + size].view(dtype).view(shape)
        for (shape, dtype), size, start in zip(wanted, sizes, starts[:-1], strict=True)
    ]
