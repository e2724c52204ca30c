"""How an MXNet array becomes what the engine takes, and back, and how its errors become MXNet's.

MXNet runs behind the program. An array is waited for, until nobody reads or writes it any more; then the engine works on
its memory, and the operation ends when that is done. What the program asks of the array afterwards comes after.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, MXNetError, check_call

from corro._errors import HorovodInternalError
from corro._front.adapter import CPU, View
from corro._front.ops import Ops
from corro._native import Output
from corro.numpy._arrays import DTYPES

P = ParamSpec("P")
R = TypeVar("R")


class CollectiveError(HorovodInternalError, MXNetError):
    """A collective failed: what the other fronts raise, and what scripts for MXNet expect."""


class InvalidArgument(ValueError, MXNetError):
    """A call that can't be: likewise."""


def translated(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, with errors that are MXNet's as well."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except MXNetError:
            raise
        except HorovodInternalError as error:
            raised = CollectiveError(str(error))
            raised.blamed_rank = error.blamed_rank
            raised.__dict__["retryable"] = error.retryable
            raise raised from error
        except ValueError as error:
            raise InvalidArgument(str(error)) from error

    return wrapper


class _Arrays:
    """MXNet's arrays, of both of its interfaces. Those that lie elsewhere than on the CPU travel as copies."""

    def place(self, tensor: Any) -> View | None:
        return self.view(self.reachable(tensor), tensor) if self.is_on_host(tensor) else None

    def reachable(self, tensor: Any) -> Any:
        on_host = self.is_on_host(tensor)
        if tensor.stype != "default":
            raise ValueError(f"a {tensor.stype} array is not supported; use tensor.tostype('default').")
        home = tensor if on_host else tensor.copyto(mx.cpu())
        # Nobody writes it any more, and nobody reads it.
        check_call(_LIB.MXNDArrayWaitToWrite(home.handle))
        return home

    def view(self, home: Any, tensor: Any) -> View:
        number = DTYPES.get(np.dtype(home.dtype))
        if number is None:
            raise ValueError(f"an array of {home.dtype} is not supported; convert it first, with tensor.astype.")
        address = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(home.handle, ctypes.byref(address)))
        return (address.value or 0, home.shape, number, CPU)

    def empty_like(self, home: Any) -> Any:
        return self.reachable(_empty(home.shape, home.ctx, home.dtype, home))

    def hold(self, tensor: Any) -> Any:
        return tensor

    storage = hold

    def is_on_host(self, tensor: Any) -> bool:
        if not isinstance(tensor, mx.nd.NDArray):
            raise ValueError(f"an MXNet array is needed here, not {type(tensor).__name__}.")
        return bool(tensor.ctx.device_type.startswith("cpu"))

    def is_on_gpu(self, _tensor: Any) -> bool:
        return False

    def device(self, _tensor: Any) -> Any:
        return CPU

    def rounded(self, numbers: tuple[Any, ...], _tensor: Any) -> tuple[Any, ...]:
        return numbers

    rounded_each = rounded

    def put_back(self, places: tuple[Any, Any], _output: Output | None = None) -> Any:
        tensor, home = places
        if home is not tensor:
            home.copyto(tensor)
        return tensor

    def to_device(self, places: tuple[Any, Any], _output: Output | None = None) -> Any:
        tensor, result = places
        return result if tensor.ctx == result.ctx else result.copyto(tensor.ctx)

    def from_output(self, like: Any, output: Output | None) -> Any:
        assert output is not None, "this kind of operation has a result of its own"
        if output.nbytes == 0:
            return _empty(output.shape, like.ctx, like.dtype, like)
        rows = np.asarray(output).view(like.dtype).reshape(output.shape)
        array = mx.nd.array(rows, ctx=like.ctx, dtype=like.dtype)
        return array.as_np_ndarray() if _is_new(like) else array

    def with_splits(self, like_and_device: tuple[Any, Any], output: Output | None) -> tuple[Any, list[int]]:
        assert output is not None, "an alltoall has a result of its own"
        return self.from_output(like_and_device[0], output), output.received_splits

    def integers(self, numbers: Sequence[int], like: Any) -> Any:
        """Whole numbers, as an array beside this one."""
        array = mx.nd.array(np.array(numbers, np.int32), ctx=like.ctx, dtype="int32")
        return array.as_np_ndarray() if _is_new(like) else array


def _is_new(array: Any) -> bool:
    return isinstance(array, mx.np.ndarray)


def _empty(shape: Any, ctx: Any, dtype: Any, like: Any) -> Any:
    if 0 in shape:
        # MXNet knows arrays without elements only by its new interface.
        with mx.util.np_shape(True):
            array = mx.nd.zeros(shape, ctx=ctx, dtype=dtype)
    else:
        array = mx.nd.empty(shape, ctx=ctx, dtype=dtype)
    return array.as_np_ndarray() if _is_new(like) else array


arrays = _Arrays()
ops = Ops(arrays)
