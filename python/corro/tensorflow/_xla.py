"""Collectives in a function that XLA compiles (`jit_compile=True`): custom calls, on the CPU.

Everything about such a call is constant in the compiled program: shapes, names, process sets.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from corro import _native
from corro._front.process_sets import ProcessSet

# By what the engine's function is known to XLA; also in crates/corro-python/src/tensorflow/xla.rs.
_TARGET = "corro_collective"
# The engine's numbers.
_NAMES = (
    *("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool"),
    *("bfloat16", "uint32", "uint64"),
)
_DTYPES = {name: number for number, name in enumerate(_NAMES)}
_INSTEAD = "Leave jit_compile=True out of this tf.function (in Keras: model.compile(..., jit_compile=False))"


def compiling() -> bool:
    """Whether the graph that is being built is for XLA."""
    if tf.executing_eagerly():
        return False
    try:
        control_flow_util = importlib.import_module("tensorflow.python.ops.control_flow_util")
    except ImportError:
        return False  # TensorFlow then says itself that it cannot compile the operation.
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def refuse(what: str) -> None:
    """Says that an operation cannot be compiled, if that is being tried."""
    if compiling():
        raise NotImplementedError(
            f"hvd.{what} does not work in a function with jit_compile=True, where only allreduce and broadcast do. "
            f"{_INSTEAD}, or call hvd.{what} outside of it."
        )


def allreduce(
    tensor: Any,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: Any,
    compression: str = "",
) -> Any:
    """An allreduce in a compiled function; its gradient is the same allreduce."""

    @tf.custom_gradient
    def call(tensor: Any) -> tuple[Any, Callable[[Any], Any]]:
        scaling = (prescale_factor, postscale_factor)
        reduced = _call("allreduce", tensor, name, op, scaling, process_set, compression)
        return reduced, lambda grad: allreduce(tf.cast(grad, tensor.dtype), None, op, *scaling, process_set)

    return call(tensor)


def broadcast(tensor: Any, root_rank: int, name: str | None, process_set: Any) -> Any:
    """A broadcast in a compiled function. What flows back is averaged, and only to root."""
    from corro._front.arguments import Average

    @tf.custom_gradient
    def call(tensor: Any) -> tuple[Any, Callable[[Any], Any]]:
        def gradient(grad: Any) -> Any:
            reduced = allreduce(tf.cast(grad, tensor.dtype), None, Average, 1.0, 1.0, process_set)
            return reduced if _native.rank() == root_rank else tf.zeros_like(reduced)

        return _call("broadcast", tensor, name, root_rank, (1.0, 1.0), process_set), gradient

    return call(tensor)


def _call(
    kind: str,
    tensor: Any,
    name: str | None,
    which: int,
    factors: tuple[float, float],
    process_set: Any,
    compression: str = "",
) -> Any:
    from tensorflow.compiler.tf2xla.python import xla

    problem = _native.tensorflow_xla_problem()
    if problem:
        raise NotImplementedError(
            f"hvd.{kind} does not work in a function with jit_compile=True with TensorFlow {tf.__version__}: {problem}. "
            f"{_INSTEAD}."
        )
    number = process_set.process_set_id if isinstance(process_set, ProcessSet) else process_set
    if tf.is_tensor(number) or number is None:
        raise NotImplementedError(
            f"hvd.{kind} in a function with jit_compile=True needs a registered process set, not {process_set}. {_INSTEAD}."
        )
    if not tensor.shape.is_fully_defined():
        raise NotImplementedError(
            f"hvd.{kind} in a function with jit_compile=True needs a tensor whose shape is known, not {tensor.shape}. "
            f"Call the function with tensors of fixed shapes (input_signature may hide them). Or: {_INSTEAD}."
        )
    if not 0 <= which < 256:
        raise ValueError(f"{kind} received invalid root rank {which}.")
    # As other ranks know it. Unlike nodes, custom calls have no names of their own.
    called = tf.compat.v1.get_default_graph().unique_name(name or f"{kind}_{tensor.name.replace(':', '_')}")
    dims = ",".join(str(dim) for dim in tensor.shape)
    fields = (kind, _DTYPES[tensor.dtype.name], which, *factors, int(number), dims, compression, f"xla.{kind}.{called}")
    (result,) = xla.custom_call_v2(
        _TARGET,
        [tensor],
        [tf.TensorSpec(tensor.shape, tensor.dtype)],
        backend_config=";".join(str(field) for field in fields),
        has_side_effect=True,
    )
    result.set_shape(tensor.shape)
    return result
