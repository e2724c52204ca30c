"""Fewer bytes on the way: gradients are cast to 16 bits before they are reduced, and back afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np


class Compressor:
    """The interface; a class of your own with these two methods works as well."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The array to reduce, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The reduced array in its own dtype."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Nothing is changed."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class FP16Compressor(Compressor):
    """Half precision: 11 bits of mantissa, a small range."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        if np.dtype(tensor.dtype).kind != "f" or np.dtype(tensor.dtype) == np.float16:
            return tensor, None
        return tensor.astype("float16", copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class Compression:
    """What `compression=` takes: `none` or `fp16`.

    Example:
        >>> hvd.Compression.fp16.compress(mx.nd.ones((2,)))[0].dtype.__name__
        'float16'
    """

    none = NoneCompressor
    fp16 = FP16Compressor
