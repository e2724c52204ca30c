"""Gradients that are JAX arrays: they are reduced as `corro.jax` does it, in one call of the compiled step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import corro.jax as hvd
from corro._errors import HorovodInternalError
from corro._front.process_sets import ProcessSet
from corro._keras.watching import LoopWatch
from corro.jax._eager import failure_of
from corro.jax._versions import trace_state_clean
from corro.jax.compression import Compression
from corro.jax.embedding import look_up as look_up_in_jax

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
    return hvd.allreduce(
        list(tensors),
        name=name,
        op=op,
        prescale_factor=prescale,
        postscale_factor=postscale,
        compression=compression,
        process_set=process_set,
    )


def allreduce_sparse(tensor: Any, name: str, op: int, compression: Any, process_set: ProcessSet) -> Any:
    raise NotImplementedError("sparse gradients do not exist in Keras on JAX.")


def is_sparse(tensor: Any) -> bool:
    return False


def densify(tensor: Any) -> Any:
    return tensor


def scale(tensor: Any, factor: float) -> Any:
    return tensor * jnp.asarray(factor, tensor.dtype)


def as_number(truth: Any) -> Any:
    return jnp.asarray(truth).astype(jnp.int32)


def only_if(condition: Any, change: Callable[[list[Any]], list[Any]], tensors: list[Any]) -> list[Any]:
    # Keras computes both branches of a step here, and chooses between the results.
    return jax.lax.cond(condition, change, lambda same: same, list(tensors))


def jit_problem() -> str:
    return ""


def outside(function: Callable[[list[Any]], list[Any]], tensors: list[Any], results: int) -> list[Any]:
    like = [jnp.asarray(tensor) for tensor in tensors]
    shapes = [jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in like[:results]]
    called: list[Any] = io_callback(lambda *a: function([np.asarray(x) for x in a]), shapes, *like, ordered=True)
    return called


def outside_problem() -> str:
    return ""


def look_up(table: Any, anchor: Any, ids: Any) -> Any:
    return look_up_in_jax(table, anchor, ids)


def watch(process_set: ProcessSet, name: str) -> LoopWatch:
    return LoopWatch(process_set, name, trace_state_clean)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def internal_error(error: BaseException) -> str | None:
    if isinstance(error, HorovodInternalError):
        return str(error)
    behind = failure_of(error)
    return str(behind) if isinstance(behind, HorovodInternalError) and behind.retryable else None
