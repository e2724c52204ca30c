"""Fewer bytes on the way: gradients are cast to 16 bits before they are reduced, and back afterwards."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from corro._front.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Cast(CastCompressor):
    @classmethod
    def travels_as_it_is(cls, dtype: Any) -> bool:
        return not dtype.is_floating or dtype == cls.target

    @classmethod
    def cast(cls, tensor: Any, dtype: Any) -> Any:
        return tf.cast(tensor, dtype)


class FP16Compressor(_Cast):
    """Half precision: 11 bits of mantissa, a small range."""

    target = tf.float16


class BF16Compressor(_Cast):
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
