"""Gradients that are JAX arrays.

A compiled step calls back into Python once, with all gradients, and waits there for the engine. The call-back is ordered:
steps follow each other on every rank as they were written. A front with compiled calls of its own would replace
`_call`, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import corro.numpy as hvd
from corro._errors import HorovodInternalError
from corro._front.process_sets import ProcessSet

# Why the last call-back failed. JAX hands its exceptions on as text in an error of its own.
_failure: list[str] = []


class _Cast:
    """Floating-point arrays travel as another dtype; others pass through."""

    target: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        if not jnp.issubdtype(tensor.dtype, jnp.floating) or tensor.dtype == cls.target:
            return tensor, None
        return tensor.astype(cls.target), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class NoneCompressor:
    """Nothing is changed."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class FP16Compressor(_Cast):
    """Half precision: 11 bits of mantissa, a small range."""

    target = jnp.float16


class BF16Compressor(_Cast):
    """bfloat16: 8 bits of mantissa, float32's range, so that gradients neither overflow nor vanish."""

    target = jnp.bfloat16


class Compression:
    """What `compression=` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def grouped_allreduce(
    tensors: list[Any],
    name: str,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any,
    process_set: ProcessSet,
) -> list[Any]:
    packed = [compression.compress(jnp.asarray(tensor)) for tensor in tensors]

    def reduce(arrays: list[Any]) -> list[Any]:
        return hvd.grouped_allreduce(
            arrays,
            name=name,
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )

    reduced = _call(reduce, [tensor for tensor, _ in packed])
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, packed, strict=True)]


def _call(function: Callable[[list[Any]], list[Any]], tensors: list[Any]) -> list[Any]:
    """`function` of the tensors' values, in order with all other such calls; results are like the tensors."""

    def on_host(*arrays: Any) -> list[Any]:
        try:
            return function([np.asarray(array) for array in arrays])
        except HorovodInternalError as error:
            _failure[:] = [str(error)]
            raise

    shapes = [jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in tensors]
    return list(io_callback(on_host, shapes, *tensors, ordered=True))


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


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def internal_error(error: BaseException) -> str | None:
    if isinstance(error, HorovodInternalError):
        return str(error)
    if _failure and "HorovodInternalError" in str(error):
        return _failure.pop()
    return None
