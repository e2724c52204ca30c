"""Fewer bytes on the way: gradients are cast to 16 bits before they are reduced, and back afterwards."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


class Compressor:
    """The interface; a class of your own with these two methods works as well. Both are traced."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The array to reduce, and what `decompress` needs to know."""
        raise NotImplementedError

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The reduced array in its own dtype."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Nothing is changed."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor


class _CastCompressor(Compressor):
    """Floating-point arrays travel as another dtype; others pass through."""

    target: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        if not jnp.issubdtype(tensor.dtype, jnp.floating) or tensor.dtype.itemsize <= 2:
            return tensor, None
        return tensor.astype(cls.target), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(_CastCompressor):
    """Half precision: 11 bits of mantissa, a small range."""

    target = jnp.float16


class BF16Compressor(_CastCompressor):
    """bfloat16: 8 bits of mantissa, float32's range, so that gradients neither overflow nor vanish."""

    target = jnp.bfloat16


class Compression:
    """What `compression=` takes: `none`, `fp16` or `bf16`. Gradients are cast before they travel, and back afterwards.

    A class of your own works as well, with the methods of `corro.jax.compression.Compressor`.

    Example:
        >>> hvd.allreduce(jnp.ones(2), compression=hvd.Compression.bf16)
        Array([1., 1.], dtype=float32)
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
