"""Arrays as the engine sees them: where they lie, what they hold, and who keeps them alive meanwhile."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from corro._front.adapter import CPU, View
from corro._native import Output

Array = np.ndarray[Any, Any]

DTYPES = {
    np.dtype(name): number
    for number, name in enumerate(
        ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
    )
} | {np.dtype("uint32"): 11, np.dtype("uint64"): 12}


def view(array: Array) -> View:
    number = DTYPES.get(array.dtype)
    if number is None:
        # ml_dtypes gives numpy its bfloat16; it need not be installed for us to know it by name.
        if array.dtype.name != "bfloat16":
            raise ValueError(f"an array of {array.dtype} is not supported; convert it first, with array.astype.")
        number = 10
    return (array.ctypes.data, array.shape, number, CPU)


def readable(array: Any) -> Array:
    """A contiguous array; a copy only if it must be. Numbers and lists are taken as well."""
    array = np.asarray(array)
    # ascontiguousarray would make a one-element vector of a scalar.
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def writable(array: Any) -> Array:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"an operation in place needs a numpy array, not {type(array).__name__}.")
    if not array.flags.writeable:
        raise ValueError("an operation in place needs an array that may be written to; this one is read-only.")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def place_for(out: Array | None, source: Array) -> Array:
    """Where the result goes: `out`, which can be used again, or a new array, for which the system clears fresh memory."""
    if out is None:
        return np.empty_like(source)
    if not isinstance(out, np.ndarray) or not (out.flags.writeable and out.flags.c_contiguous):
        raise ValueError("out must be a contiguous numpy array that may be written to.")
    if out.dtype != source.dtype or out.shape != source.shape:
        raise ValueError(
            f"out must be like the array, {source.dtype} of shape {source.shape}; it is {out.dtype} of shape {out.shape}."
        )
    if out is not source and np.may_share_memory(out, source) and out.ctypes.data != source.ctypes.data:
        raise ValueError("out must not overlap the array.")
    return out


def hold(*arrays: Array) -> Any:
    """What keeps the memory of arrays where it is: numpy does not resize one that has weak references, not even with
    `refcheck=False`. They go with the handle.
    """
    held: list[Any] = []
    for array in arrays:
        owner: Any = array
        # A view has the memory of the array that it is made from.
        while isinstance(owner, np.ndarray):
            held.append((owner, weakref.ref(owner)))
            owner = owner.base
    return held


def put_back(places: tuple[Array, Array], _output: Output | None = None) -> Array:
    array, home = places
    if home is not array:
        array[...] = home
    return array


def from_output(like: Array, output: Output | None) -> Array:
    assert output is not None, "this kind of operation has a result of its own"
    if output.nbytes == 0:
        return np.empty(output.shape, like.dtype)
    return np.asarray(output).view(like.dtype).reshape(output.shape)


def with_splits(like: Array, output: Output | None) -> tuple[Array, Array]:
    assert output is not None, "an alltoall has a result of its own"
    return from_output(like, output), np.array(output.received_splits, np.int32)
