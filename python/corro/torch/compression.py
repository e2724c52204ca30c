"""Fewer bytes on the way: Horovod's casts to 16 bits, and what the engine can do."""

from __future__ import annotations

from typing import Any

import torch

from corro._front.compression import Methods


class Compressor:
    """The interface; a class of your own with these two methods works as well."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to reduce, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The reduced tensor in its own dtype."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Nothing is changed."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class _CastCompressor(Compressor):
    """Floating-point tensors travel as another dtype; others pass through."""

    target: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:  # type: ignore[override]
        if not tensor.dtype.is_floating_point or tensor.dtype == cls.target:
            return tensor, None
        return tensor.to(cls.target), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # type: ignore[override]
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """Half precision: 11 bits of mantissa, a small range."""

    target = torch.float16


class BF16Compressor(_CastCompressor):
    """bfloat16: 8 bits of mantissa, float32's range, so that gradients neither overflow nor vanish."""

    target = torch.bfloat16


class Compression(Methods):
    """What `compression=` takes.

    `none`, `fp16` and `bf16` are Horovod's: gradients are cast before they travel, and back afterwards. A class of your own
    works as well, with the methods of `corro.torch.compression.Compressor`.

    The others are the engine's, and take settings: `int8()`, `int4()`, `fp8()`, `onebit()`, `sign()`, `qsgd()`, `terngrad()`,
    `topk()`, `dgc()`, `randomk()`, `powersgd()`, `ef21()`. They send fewer bytes between hosts, and nothing changes inside
    of one. See the page "Fewer bytes".

    Example:
        >>> hvd.allreduce(torch.ones(2), compression=hvd.Compression.bf16)
        tensor([1., 1.])
        >>> hvd.allreduce(torch.ones(2), name="x", compression=hvd.Compression.int8())
        tensor([1., 1.])
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
