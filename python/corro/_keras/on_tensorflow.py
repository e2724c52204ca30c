"""Gradients that are TensorFlow tensors, eager or in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import corro.tensorflow as hvd
from corro import _native
from corro._errors import HorovodInternalError
from corro._front.process_sets import ProcessSet
from corro.tensorflow._watching import TrainingWatch
from corro.tensorflow.compression import Compression
from corro.tensorflow.elastic import is_lost_collective

__all__ = ["Compression"]


def grouped_allreduce(
    tensors: list[Any],
    name: str,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any,
    process_set: ProcessSet,
) -> list[Any]:
    return hvd.grouped_allreduce(
        tensors,
        compression=compression,
        op=op,
        prescale_factor=prescale,
        postscale_factor=postscale,
        process_set=process_set,
        ignore_name_scope=True,
        name=_op_name(name),
    )


def allreduce_sparse(tensor: Any, name: str, op: int, compression: Any, process_set: ProcessSet) -> Any:
    return hvd.allreduce(
        tensor,
        compression=compression,
        op=op,
        name=_op_name(name),
        process_set=process_set,
        ignore_name_scope=True,
    )


def _op_name(name: str) -> str:
    """The same name in every scope, of characters that may be in a node's name.

    Two optimizers of a step may be at work at the same time, each in a branch of its own, where TensorFlow does not know
    that a name is taken: names are counted in the graph around the branches. Not in the one around that, where a rank
    whose optimizer must make its variables first traces the same step twice.
    """
    clean = "".join(char if char.isascii() and (char.isalnum() or char in "_.") else "_" for char in name)
    if tf.executing_eagerly():
        return clean
    graph = tf.compat.v1.get_default_graph()
    while type(graph).__name__ in ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph"):
        graph = graph.outer_graph
    taken = graph.get_collection_ref("names of Corro's operations")
    times = taken.count(clean)
    taken.append(clean)
    return f"{clean}_{times}" if times else clean


def is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, tf.IndexedSlices)


def densify(tensor: Any) -> Any:
    return tf.convert_to_tensor(tensor)


def scale(tensor: Any, factor: float) -> Any:
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(scale(tensor.values, factor), tensor.indices, tensor.dense_shape)
    return tensor * tf.cast(factor, tensor.dtype)


def as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value)


def as_number(truth: Any) -> Any:
    return tf.cast(truth, tf.int32)


def only_if(condition: Any, change: Callable[[list[Any]], list[Any]], tensors: list[Any]) -> list[Any]:
    # Keras calls this in a branch of the graph that is only taken when the condition holds.
    return change(tensors)


def jit_problem() -> str:
    if tf.config.list_physical_devices("GPU"):
        return "what reduces gradients in a program of XLA's works on the CPU only, and this one would be for a GPU"
    return _native.tensorflow_xla_problem() or ""


def outside(function: Callable[[list[Any]], list[Any]], tensors: list[Any], results: int) -> list[Any]:
    like = [tf.convert_to_tensor(tensor) for tensor in tensors]
    made = tf.numpy_function(lambda *arrays: function(list(arrays)), like, [t.dtype for t in like[:results]])
    for tensor, source in zip(made, like, strict=False):
        tensor.set_shape(source.shape)
    return list(made)


def outside_problem() -> str:
    return "parameter servers are asked by Python, which can't be in a program of XLA's"


def look_up(table: Any, anchor: Any, ids: Any) -> Any:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def rows(_anchor: Any) -> Any:
        found = tf.numpy_function(table.pull, [ids], tf.float32)
        found.set_shape((*ids.shape, table.dim))

        def backward(gradients: Any) -> Any:
            def push(ids: Any, gradients: Any) -> Any:
                table.push(ids, gradients)
                return np.float32(0)

            done = tf.numpy_function(push, [ids, gradients], tf.float32)
            done.set_shape(())
            return done

        return found, backward

    return rows(tf.convert_to_tensor(anchor))


def watch(process_set: ProcessSet, _name: str) -> TrainingWatch:
    # Not by the optimizer's name, which another may have: two compare side by side, each in a thread of its own.
    return TrainingWatch(process_set)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def internal_error(error: BaseException) -> str | None:
    if isinstance(error, HorovodInternalError):
        return str(error)
    # A kernel that fails can only say so by a status of TensorFlow's.
    return str(error) if isinstance(error, tf.errors.OpError) and is_lost_collective(error) else None
