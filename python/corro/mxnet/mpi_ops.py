"""The operations of `corro.mxnet`. Each waits for its result; `priority` is there for scripts that give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

import mxnet as mx

from corro._front import arguments
from corro._front.arguments import Adasum, Average, Max, Min, Product, Sum
from corro._front.process_sets import ProcessSet, global_process_set
from corro.mxnet import _autograd
from corro.mxnet._arrays import arrays, ops, translated

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]


# MXNet has no types: what comes out is what went in.
Array = TypeVar("Array")


def _reduction(op: int | None, average: bool | None, process_set: ProcessSet) -> int:
    op = arguments.reduction(op, average, process_set)
    assert op != Adasum, "Adasum is not supported with MXNet."
    return op


@translated
def allreduce(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Array:
    """The average over all ranks, or what `op` asks for: `Sum`, `Min`, `Max`, `Product`. Differentiable.

    Example:
        >>> hvd.allreduce(mx.nd.ones((2,)) * hvd.rank(), op=hvd.Sum).asnumpy()
        array([1., 1.], dtype=float32)
    """
    numbers = (_reduction(op, average, process_set), prescale_factor, postscale_factor)
    if mx.autograd.is_recording():
        return _autograd.Allreduce(process_set, name, *numbers)(tensor)
    return ops.into_new("allreduce", tensor, process_set, name, *numbers)


@translated
def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Array:
    """`allreduce` in place: gives the same array.

    Example:
        >>> x = mx.nd.ones((2,)) * hvd.rank()
        >>> hvd.allreduce_(x, op=hvd.Max) is x
        True
    """
    numbers = (_reduction(op, average, process_set), prescale_factor, postscale_factor)
    return ops.in_place("allreduce", tensor, process_set, name, *numbers)


@translated
def grouped_allreduce(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[Array]:
    """`allreduce` of several arrays as one operation. An empty list is given back.

    Example:
        >>> [x.asscalar() for x in hvd.grouped_allreduce([mx.nd.ones((1,)), mx.nd.ones((1,)) * 2], op=hvd.Sum)]
        [2.0, 4.0]
    """
    if not tensors:
        return tensors
    numbers = (_reduction(op, average, process_set), prescale_factor, postscale_factor)
    if mx.autograd.is_recording():
        return _listed(_autograd.GroupedAllreduce(process_set, name, *numbers)(*tensors))
    return ops.group_into_new("allreduce", tensors, process_set, name, *numbers)


@translated
def grouped_allreduce_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[Array]:
    """`grouped_allreduce` in place.

    Example:
        >>> x = mx.nd.ones((1,))
        >>> _ = hvd.grouped_allreduce_([x], op=hvd.Sum)
        >>> x.asscalar()
        2.0
    """
    if not tensors:
        return tensors
    numbers = (_reduction(op, average, process_set), prescale_factor, postscale_factor)
    return ops.group_in_place("allreduce", tensors, process_set, name, *numbers)


def _require_rows(operation: str, tensor: Any) -> None:
    arguments.require_rows(operation, tensor.shape)


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


@translated
def allgather(
    tensor: Array, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Array:
    """The arrays of all ranks, one behind the other along the first dimension, in which they may differ. Differentiable.

    Example:
        >>> hvd.allgather(mx.nd.ones((1,)) * hvd.rank()).asnumpy()
        array([0., 1.], dtype=float32)
    """
    _require_rows("allgather", tensor)
    if mx.autograd.is_recording():
        return _autograd.Allgather(process_set, name)(tensor)
    return ops.resized("allgather", tensor, process_set, name)


@translated
def grouped_allgather(
    tensors: Sequence[Array], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Sequence[Array]:
    """`allgather` of several arrays as one operation. An empty list is given back.

    Example:
        >>> [x.shape for x in hvd.grouped_allgather([mx.nd.ones((1,)), mx.nd.ones((2, 3))])]
        [(2,), (4, 3)]
    """
    if not tensors:
        return tensors
    if mx.autograd.is_recording():
        return _listed(_autograd.Allgather(process_set, name)(*tensors))
    return ops.group_resized("allgather", tensors, process_set, name)


@translated
def broadcast(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """The array of rank `root_rank`, on every rank. Differentiable.

    Example:
        >>> hvd.broadcast(mx.nd.ones((1,)) * hvd.rank(), root_rank=1).asscalar()
        1.0
    """
    if mx.autograd.is_recording():
        return _autograd.Broadcast(process_set, name, root_rank)(tensor)
    return ops.into_new("broadcast", tensor, process_set, name, Sum, 1.0, 1.0, root_rank)


@translated
def broadcast_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """`broadcast` in place: gives the same array.

    Example:
        >>> x = mx.nd.ones((1,)) * hvd.rank()
        >>> hvd.broadcast_(x, root_rank=1).asscalar()
        1.0
    """
    return ops.in_place("broadcast", tensor, process_set, name, Sum, 1.0, 1.0, root_rank)


@overload
def alltoall(
    tensor: Array,
    splits: None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array: ...
@overload
def alltoall(
    tensor: Array,
    splits: Any,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array, Array]: ...
@translated
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends a block of rows to each rank, and gives what all ranks sent here, in rank order. Differentiable.

    `splits` says how many rows go to each rank; then the result is a pair: the rows, and how many came from each rank.

    Example:
        >>> hvd.alltoall(mx.nd.ones((2,)) * hvd.rank()).asnumpy()
        array([0., 1.], dtype=float32)
    """
    given = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
    dimensions = 0 if given is None else getattr(given, "ndim", 1)
    rows = arguments.rows_to_send(tensor.shape, [] if given is None else list(given), dimensions, process_set)
    if mx.autograd.is_recording():
        function = _autograd.Alltoall(process_set, name, rows)
        output = function(tensor)
        return output if splits is None else (output, _autograd.received(function, tensor))
    output, received = ops.alltoall(tensor, rows, None, process_set, name)
    return output if splits is None else (output, arrays.integers(received, tensor))


def _scatter_numbers(op: int, prescale_factor: float, postscale_factor: float) -> tuple[int, float, float]:
    assert op in (Average, Sum), "reducescatter supports Average and Sum."
    return op, prescale_factor, postscale_factor


@translated
def reducescatter(
    tensor: Array,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """This rank's rows of the average, or the sum, over all ranks. Differentiable.

    Example:
        >>> hvd.reducescatter(mx.nd.ones((4,)), op=hvd.Sum).asnumpy()
        array([2., 2.], dtype=float32)
    """
    numbers = _scatter_numbers(op, prescale_factor, postscale_factor)
    _require_rows("reducescatter", tensor)
    if mx.autograd.is_recording():
        return _autograd.Reducescatter(process_set, name, *numbers)(tensor)
    return ops.resized("reducescatter", tensor, process_set, name, *numbers)


@translated
def grouped_reducescatter(
    tensors: Sequence[Array],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Sequence[Array]:
    """`reducescatter` of several arrays as one operation. An empty list is given back.

    Example:
        >>> [x.shape for x in hvd.grouped_reducescatter([mx.nd.ones((2,)), mx.nd.ones((4, 3))])]
        [(1,), (2, 3)]
    """
    if not tensors:
        return tensors
    numbers = _scatter_numbers(op, prescale_factor, postscale_factor)
    for tensor in tensors:
        _require_rows("reducescatter", tensor)
    if mx.autograd.is_recording():
        return _listed(_autograd.Reducescatter(process_set, name, *numbers)(*tensors))
    return ops.group_resized("reducescatter", tensors, process_set, name, *numbers)
