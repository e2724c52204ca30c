"""Operations on several tensors that complete together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from corro._front.arguments import Average, non_empty, reduction, require_rows, scatter_reduction
from corro._front.engine_compression import is_for_engine, setting_for
from corro._front.process_sets import ProcessSet, global_process_set
from corro._native import wait
from corro.torch import _autograd, _compiled, _eager
from corro.torch.compression import Compression

Tensors = Sequence[torch.Tensor]


def _differentiable(tensors: Tensors) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`allreduce` of several tensors as one operation: none is ready before all are. Arguments as for `allreduce`.

    Raises `ValueError` for an empty list.

    Example:
        >>> hvd.grouped_allreduce([torch.ones(1), torch.ones(2)], op=hvd.Sum)
        [tensor([2.]), tensor([2., 2.])]
    """
    op = reduction(op, average, process_set)
    numbers = (op, prescale_factor, postscale_factor)
    if is_for_engine(compression):
        return _compressed(list(non_empty(tensors)), name, compression, numbers, process_set)
    packed = [compression.compress(tensor) for tensor in non_empty(tensors)]
    inputs = [tensor for tensor, _ in packed]
    if torch.compiler.is_compiling():
        reduced = _compiled.grouped_allreduce(inputs, process_set, name, *numbers)
    elif _differentiable(inputs):
        reduced = _autograd.GroupedAllreduce.apply(process_set, name, *numbers, *inputs)
    else:
        reduced = wait(_eager.group_into_new_async("allreduce", inputs, process_set, name, *numbers))
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, packed, strict=True)]


def _compressed(
    tensors: list[torch.Tensor],
    name: str | None,
    compression: Any,
    numbers: tuple[int, float, float],
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """Compressed by the engine: not differentiated, as only gradients are."""
    spec = setting_for(compression, name, sum(tensor.nbytes for tensor in tensors))
    return list(wait(_eager.group_into_new_async("allreduce", tensors, process_set, name, *numbers, spec)))


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a `grouped_allreduce` and gives one handle for all of its tensors.

    Example:
        >>> handle = hvd.grouped_allreduce_async([torch.ones(1), torch.ones(2)], op=hvd.Sum)
        >>> hvd.synchronize(handle)
        (tensor([2.]), tensor([2., 2.]))
    """
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    return _eager.group_into_new_async("allreduce", non_empty(tensors), process_set, name, *numbers)


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """`grouped_allreduce` in place: the tensors themselves get the results, and are given back.

    Example:
        >>> tensors = [torch.ones(1), torch.ones(2)]
        >>> hvd.grouped_allreduce_(tensors, op=hvd.Sum)
        (tensor([2.]), tensor([2., 2.]))
    """
    handle = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    return wait(handle)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a `grouped_allreduce_` and gives one handle. Leave the tensors alone until `synchronize`.

    Example:
        >>> tensors = [torch.ones(1), torch.ones(2)]
        >>> handle = hvd.grouped_allreduce_async_(tensors, op=hvd.Sum)
        >>> hvd.synchronize(handle)
        (tensor([2.]), tensor([2., 2.]))
    """
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    return _eager.group_in_place_async("allreduce", non_empty(tensors), process_set, name, *numbers)


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[torch.Tensor, ...]:
    """`allgather` of several tensors as one operation.

    Example:
        >>> hvd.grouped_allgather([torch.tensor([hvd.rank()]), torch.tensor([7])])
        (tensor([0, 1]), tensor([7, 7]))
    """
    tensors = non_empty(tensors)
    if _differentiable(tensors):
        return _autograd.GroupedAllgather.apply(process_set, name, *tensors)
    return wait(_eager.group_resized_async("allgather", tensors, process_set, name))


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a `grouped_allgather` and gives one handle for all of its tensors.

    Example:
        >>> handle = hvd.grouped_allgather_async([torch.tensor([hvd.rank()]), torch.tensor([7])])
        >>> hvd.synchronize(handle)
        (tensor([0, 1]), tensor([7, 7]))
    """
    return _eager.group_resized_async("allgather", non_empty(tensors), process_set, name)


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of several tensors as one operation.

    Example:
        >>> hvd.grouped_reducescatter([torch.ones(2), torch.ones(4)], op=hvd.Sum)
        [tensor([2.]), tensor([2., 2.])]
    """
    op = scatter_reduction(op)
    packed = [compression.compress(tensor) for tensor in _with_rows(tensors)]
    inputs = [tensor for tensor, _ in packed]
    numbers = (op, prescale_factor, postscale_factor)
    if _differentiable(inputs):
        parts = _autograd.GroupedReducescatter.apply(process_set, name, *numbers, *inputs)
    else:
        parts = wait(_eager.group_resized_async("reducescatter", inputs, process_set, name, *numbers))
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(parts, packed, strict=True)]


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a `grouped_reducescatter` and gives one handle for all of its tensors.

    Example:
        >>> handle = hvd.grouped_reducescatter_async([torch.ones(2), torch.ones(4)], op=hvd.Sum)
        >>> hvd.synchronize(handle)
        (tensor([2.]), tensor([2., 2.]))
    """
    numbers = (scatter_reduction(op), prescale_factor, postscale_factor)
    return _eager.group_resized_async("reducescatter", _with_rows(tensors), process_set, name, *numbers)


def _with_rows(tensors: Tensors) -> Tensors:
    tensors = non_empty(tensors)
    for tensor in tensors:
        require_rows("reducescatter", tensor.shape)
    return tensors
