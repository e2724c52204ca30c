"""Reductions as users call them: dense tensors and `IndexedSlices`, compressed or not, alone or in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from corro._front import arguments
from corro._front.arguments import Adasum, Average, Sum
from corro._front.engine_compression import is_for_engine, setting_for
from corro._front.process_sets import ProcessSet, global_process_set
from corro.tensorflow.compression import Compression
from corro.tensorflow.mpi_ops import (
    AnySet,
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    allgather,
    size_op,
)
from corro.tensorflow.util import as_it_is, on_device


def _operation(op: int | None, average: bool | None, process_set: AnySet) -> int:
    return arguments.reduction(op, average, process_set if isinstance(process_set, ProcessSet) else global_process_set)


def _sparse_allreduce(
    tensor: Any, op: int, scaled: bool, name: str | None, process_set: AnySet, ignore_name_scope: bool
) -> Any:
    """An allreduce of slices: all ranks' slices together, which add up when they are applied."""
    if op == Adasum:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround please pass "
            "sparse_as_dense=True to DistributedOptimizer."
        )
    if op not in (Average, Sum):
        raise NotImplementedError("Only Average and Sum reductions are supported for IndexedSlices.")
    if scaled:
        raise NotImplementedError("prescale_factor and postscale_factor are not supported for IndexedSlices.")
    values = allgather(tensor.values, name and f"{name}_values", ignore_name_scope, process_set)
    indices = allgather(tensor.indices, name and f"{name}_indices", ignore_name_scope, process_set)
    if op == Average:
        values /= tf.cast(size_op(process_set), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=tensor.dense_shape)


def _spec(compression: Any, name: str | None, tensors: list[Any]) -> str:
    """How the engine is to compress these, which are of one dtype; "" for not at all."""
    # Where a graph does not know a shape, "auto" takes the tensor for a small one.
    nbytes = sum((tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors)
    return setting_for(compression, name, nbytes) or ""


@as_it_is
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: AnySet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces the tensor over all ranks; averages unless `op` says otherwise. `IndexedSlices` are gathered.

    `op` is Average, Sum, Min, Max, Product or Adasum; `average` is its deprecated form. The input is multiplied by
    `prescale_factor`, the result by `postscale_factor`. `compression` says what travels, such as
    `hvd.Compression.fp16`. `device_dense` and `device_sparse` are devices to work on, "" for TensorFlow's choice.
    `process_set` are the ranks that take part. Differentiable; works in a `tf.function` and under XLA. Raises
    `NotImplementedError` for what slices can't do.

    Example:
        >>> hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum).numpy()
        array([2., 4.], dtype=float32)
    """
    op = _operation(op, average, process_set)
    if isinstance(tensor, tf.IndexedSlices):
        scaled = prescale_factor != 1.0 or postscale_factor != 1.0
        with on_device(device_sparse):
            return _sparse_allreduce(tensor, op, scaled, name, process_set, ignore_name_scope)
    with on_device(device_dense):
        if is_for_engine(compression):
            tensor = tf.convert_to_tensor(tensor)
            spec = _spec(compression, name, [tensor])
            return _allreduce(
                *(tensor, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set, spec)
            )
        packed, context = compression.compress(tf.convert_to_tensor(tensor))
        reduced = _allreduce(packed, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set)
        return compression.decompress(reduced, context)


@as_it_is
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: AnySet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """`allreduce` of several tensors as one operation: none is ready before all are. The dense ones must be of one dtype.

    Example:
        >>> [total.numpy() for total in hvd.grouped_allreduce([tf.ones(1), tf.ones(2)], op=hvd.Sum)]
        [array([2.], dtype=float32), array([2., 2.], dtype=float32)]
    """
    if not tensors:
        return list(tensors)
    op = _operation(op, average, process_set)
    scaling = (prescale_factor, postscale_factor)
    results: list[Any] = [
        allreduce(
            *(tensor, None, device_dense, device_sparse, compression, op, *scaling),
            *(name and f"{name}_{i + 1}of{len(tensors)}", process_set, ignore_name_scope),
        )
        if isinstance(tensor, tf.IndexedSlices)
        else None
        for i, tensor in enumerate(tensors)
    ]
    dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if not dense:
        return results
    with on_device(device_dense):
        if is_for_engine(compression):
            whole = [tf.convert_to_tensor(tensors[i]) for i in dense]
            spec = _spec(compression, name, whole)
            reduced = _grouped_allreduce(whole, name, op, *scaling, ignore_name_scope, process_set, spec)
            for i, tensor in zip(dense, reduced, strict=True):
                results[i] = tensor
            return results
        packed = [compression.compress(tf.convert_to_tensor(tensors[i])) for i in dense]
        reduced = _grouped_allreduce(
            *([tensor for tensor, _ in packed], name, op, *scaling, ignore_name_scope, process_set)
        )
        for i, tensor, (_, context) in zip(dense, reduced, packed, strict=True):
            results[i] = compression.decompress(tensor, context)
    return results


@as_it_is
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: AnySet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces over all ranks and gives each its share of the rows. `op` is Average or Sum. Differentiable.

    Example:
        >>> hvd.reducescatter(tf.ones(2), op=hvd.Sum).numpy()
        array([2.], dtype=float32)
    """
    with on_device(device_dense):
        packed, context = compression.compress(tf.convert_to_tensor(tensor))
        mine = _reducescatter(packed, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set)
        return compression.decompress(mine, context)


@as_it_is
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: AnySet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of several tensors as one operation.

    Example:
        >>> [part.numpy() for part in hvd.grouped_reducescatter([tf.ones(2), tf.ones(4)], op=hvd.Sum)]
        [array([2.], dtype=float32), array([2., 2.], dtype=float32)]
    """
    if not tensors:
        return list(tensors)
    with on_device(device_dense):
        packed = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
        mine = _grouped_reducescatter(
            *([tensor for tensor, _ in packed], None, op, prescale_factor, postscale_factor, False, process_set)
        )
        return [compression.decompress(tensor, context) for tensor, (_, context) in zip(mine, packed, strict=True)]
