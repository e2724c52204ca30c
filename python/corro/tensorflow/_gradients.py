"""What flows back through each operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from corro._front.arguments import Average, Sum
from corro.tensorflow.mpi_ops import (
    _allreduce,
    _grouped_allreduce,
    allgather,
    alltoall,
    grouped_allgather,
    rank_op,
    size_op,
)


def _set_of(op: Any, own: int) -> Any:
    """The process set of a node that has `own` inputs beside it."""
    return op.inputs[own] if len(op.inputs) > own else op.get_attr("process_set_id")


def _none_for_the_set(op: Any, own: int) -> list[None]:
    return [None] * (len(op.inputs) - own)


def _reduction_of(op: Any) -> dict[str, Any]:
    return {
        "op": op.get_attr("reduce_op"),
        "prescale_factor": op.get_attr("prescale_factor"),
        "postscale_factor": op.get_attr("postscale_factor"),
    }


def _of_its_dtype(op: Any, grads: Sequence[Any]) -> list[Any]:
    """What came for the outputs of a node, each in the dtype of its output.

    Callers may bring others, as `tape.gradient(..., output_gradients=...)` does with arrays of NumPy's float64. A group is
    of one dtype, and what flows back must have the dtype of what it belongs to.
    """
    return [tf.cast(grad, output.dtype) for grad, output in zip(grads, op.outputs, strict=False)]


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_grad(op: Any, grad: Any) -> list[Any]:
    (grad,) = _of_its_dtype(op, [grad])
    return [_allreduce(grad, process_set=_set_of(op, 1), **_reduction_of(op)), *_none_for_the_set(op, 1)]


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _grouped_allreduce_grad(op: Any, *grads: Any) -> list[Any]:
    own = len(grads)
    reduced = _grouped_allreduce(_of_its_dtype(op, grads), process_set=_set_of(op, own), **_reduction_of(op))
    return [*reduced, *_none_for_the_set(op, own)]


def _own_rows(op: Any, own: int, grads: Any) -> list[Any]:
    """This rank's rows of gradients that are whole on all ranks."""
    process_set = _set_of(op, own)
    me = rank_op()
    rows = [tf.shape(tensor)[0] for tensor in op.inputs[:own]]
    # Of each rank: who it is and how many rows it brought. Ranks are in ascending order in every set.
    table = allgather(tf.expand_dims(tf.stack([me, *rows]), 0), process_set=process_set)
    before = tf.reduce_sum(tf.where(table[:, :1] < me, table, 0), axis=0)
    return [grad[before[i + 1] : before[i + 1] + rows[i]] for i, grad in enumerate(grads)]


@tf.RegisterGradient("HorovodAllgather")
def _allgather_grad(op: Any, grad: Any) -> list[Any]:
    (grad,) = _of_its_dtype(op, [grad])
    whole = _allreduce(grad, op=Average, process_set=_set_of(op, 1))
    return [*_own_rows(op, 1, [whole]), *_none_for_the_set(op, 1)]


@tf.RegisterGradient("HorovodGroupedAllgather")
def _grouped_allgather_grad(op: Any, *grads: Any) -> list[Any]:
    own = len(grads)
    whole = _grouped_allreduce(_of_its_dtype(op, grads), op=Average, process_set=_set_of(op, own))
    return [*_own_rows(op, own, whole), *_none_for_the_set(op, own)]


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast_grad(op: Any, grad: Any) -> list[Any]:
    (grad,) = _of_its_dtype(op, [grad])
    reduced = _allreduce(grad, op=Average, process_set=_set_of(op, 1))
    is_root = tf.equal(rank_op(), op.get_attr("root_rank"))
    return [tf.where(is_root, reduced, tf.zeros_like(reduced)), *_none_for_the_set(op, 1)]


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall_grad(op: Any, grad: Any, _of_splits: Any) -> list[Any]:
    (grad,) = _of_its_dtype(op, [grad])
    back, _ = alltoall(grad, splits=op.outputs[1], process_set=_set_of(op, 2))
    kept = tf.shape(op.inputs[0])[0] - tf.shape(back)[0]
    padding = tf.concat([[kept], tf.shape(back)[1:]], axis=0)
    return [tf.concat([back, tf.zeros(padding, back.dtype)], axis=0), None, *_none_for_the_set(op, 2)]


def _unscattered(op: Any, own: int, grad: Any) -> Any:
    """What one row of a reducescatter's result owes to each rank's."""
    factor = op.get_attr("prescale_factor") * op.get_attr("postscale_factor")
    if factor != 1.0:
        grad *= tf.cast(factor, grad.dtype)
    if op.get_attr("reduce_op") == Sum:
        grad *= tf.cast(size_op(_set_of(op, own)), grad.dtype)
    return grad


@tf.RegisterGradient("HorovodReducescatter")
def _reducescatter_grad(op: Any, grad: Any) -> list[Any]:
    (grad,) = _of_its_dtype(op, [grad])
    return [allgather(_unscattered(op, 1, grad), process_set=_set_of(op, 1)), *_none_for_the_set(op, 1)]


@tf.RegisterGradient("HorovodGroupedReducescatter")
def _grouped_reducescatter_grad(op: Any, *grads: Any) -> list[Any]:
    own = len(grads)
    scaled = [_unscattered(op, own, grad) for grad in _of_its_dtype(op, grads)]
    whole = grouped_allgather(scaled, process_set=_set_of(op, own))
    return [*whole, *_none_for_the_set(op, own)]


for _name in ("Join", "Barrier", "Size", "Rank", "LocalSize", "LocalRank", "ProcessSetIncluded"):
    tf.no_gradient(f"Horovod{_name}")
