"""Fewer bytes on the way: Horovod's casts to 16 bits, and what the engine can do."""

from __future__ import annotations

from typing import Any

import torch

from corro._front.compression import CastCompressor, Compressor, NoneCompressor
from corro._front.engine_compression import Methods

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Cast(CastCompressor):
    @classmethod
    def travels_as_it_is(cls, dtype: Any) -> bool:
        return not dtype.is_floating_point or dtype == cls.target

    @classmethod
    def cast(cls, tensor: Any, dtype: Any) -> Any:
        return tensor.to(dtype)


class FP16Compressor(_Cast):
    """Half precision: 11 bits of mantissa, a small range."""

    target = torch.float16


class BF16Compressor(_Cast):
    """bfloat16: 8 bits of mantissa, float32's range, so that gradients neither overflow nor vanish."""

    target = torch.bfloat16


class Compression(Methods):
    """What `compression=` takes.

    `none`, `fp16` and `bf16` are Horovod's: gradients are cast before they travel, and back afterwards. A class of your own
    works as well, with the methods of `corro.torch.compression.Compressor`.

    The others are the engine's, and take settings: `int8()`, `int4()`, `fp8()`, `onebit()`, `sign()`, `qsgd()`,
    `terngrad()`, `topk()`, `dgc()`, `randomk()`, `powersgd()`, `ef21()`. They send fewer bytes between hosts, and
    nothing changes inside of one. See the page "Fewer bytes".

    Example:
        >>> hvd.allreduce(torch.ones(2), compression=hvd.Compression.bf16)
        tensor([1., 1.])
        >>> hvd.allreduce(torch.ones(2), name="x", compression=hvd.Compression.int8())
        tensor([1., 1.])
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
