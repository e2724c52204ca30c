"""Fewer bytes on the way: gradients are cast to 16 bits before they are reduced, and back afterwards.

A front says how its tensors are cast, and to what.
"""

from __future__ import annotations

from typing import Any


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


class CastCompressor(Compressor):
    """Floating-point tensors travel as another dtype; others pass through."""

    target: Any

    @classmethod
    def travels_as_it_is(cls, dtype: Any) -> bool:
        raise NotImplementedError

    @classmethod
    def cast(cls, tensor: Any, dtype: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:  # type: ignore[override]
        dtype = tensor.dtype
        return (tensor, None) if cls.travels_as_it_is(dtype) else (cls.cast(tensor, cls.target), dtype)

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:  # type: ignore[override]
        return tensor if ctx is None else cls.cast(tensor, ctx)
