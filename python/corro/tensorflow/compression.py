"""Fewer bytes on the way: gradients are cast to 16 bits before they are reduced, and back afterwards."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """The interface; a class of your own with these two methods works as well."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to reduce, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The reduced tensor in its own dtype."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Nothing is changed."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class _CastCompressor(Compressor):
    """Floating-point tensors travel as another dtype; others pass through."""

    target: tf.DType

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:  # type: ignore[override]
        if not tensor.dtype.is_floating or tensor.dtype == cls.target:
            return tensor, None
        return tf.cast(tensor, cls.target), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:  # type: ignore[override]
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Half precision: 11 bits of mantissa, a small range."""

    target = tf.float16


class BF16Compressor(_CastCompressor):
    """bfloat16: 8 bits of mantissa, float32's range, so that gradients neither overflow nor vanish."""

    target = tf.bfloat16


class Compression:
    """What `compression=` takes: `none`, `fp16` or `bf16`. Gradients are cast before they travel, and back afterwards.

    A class of your own works as well, with the methods of `corro.tensorflow.compression.Compressor`.

    Example:
        >>> hvd.allreduce(np.ones(2, np.float32), compression=hvd.Compression.bf16).numpy()
        array([1., 1.], dtype=float32)
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
