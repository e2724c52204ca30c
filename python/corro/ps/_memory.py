"""Arrays of any framework as servers see them: numpy's where they lie, torch's on the CPU, everything else by a copy."""

from __future__ import annotations

import math
import sys
from typing import Any, Literal

import numpy as np

from corro.numpy._arrays import readable, view

Array = Any
# What an array of a key is: its framework, shape and dtype.
Kind = tuple[Literal["numpy", "torch"], tuple[int, ...], Any]


class Memory:
    """An array that can be read: kept alive as long as this is."""

    def __init__(self, kind: Kind, array: Any, address: int, dtype: int, nbytes: int) -> None:
        self.kind, self._array, self.dtype = kind, array, dtype
        self.place = (address, nbytes)
        self.shape = kind[1]
        self.elements = math.prod(self.shape)
        self.itemsize = nbytes // self.elements if self.elements else 1

    def checked(self, kinds: dict[str, Kind], key: str, rows: bool = False) -> Memory:
        """Itself, if it is what the key's value is like."""
        if key not in kinds:
            raise ValueError(f"no key is called {key!r}: call init first.")
        _, shape, dtype = kinds[key]
        same = self.shape[1:] == shape[1:] if rows else self.shape == shape
        if not same or self.kind[2] != dtype:
            raise ValueError(f"{key!r} is {dtype} of shape {shape}, and this is {self.kind[2]} of shape {self.shape}.")
        return self


class Room:
    """An array that can be written to; if it must be written by way of a copy, `put_back` brings it home."""

    def __init__(self, home: Any, array: Any, memory: tuple[int, int]) -> None:
        self._home, self._array, self.memory = home, array, memory

    def put_back(self) -> Any:
        if self._array is self._home:
            return self._home
        if is_torch(self._home):
            self._home.copy_(self._array)
        else:
            self._home[...] = self._array
        return self._home


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def memory_of(value: Array) -> Memory:
    """Where a value can be read."""
    if is_torch(value):
        from corro.torch._tensors import DTYPES

        tensor = value.detach().cpu().contiguous()
        if tensor.dtype not in DTYPES:
            raise ValueError(f"a tensor of {tensor.dtype} is not supported; convert it first.")
        kind: Kind = ("torch", tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        return Memory(kind, tensor, tensor.data_ptr(), DTYPES[tensor.dtype], tensor.numel() * tensor.element_size())
    array = readable(value)
    address, shape, dtype, _ = view(array)[:4]
    name = _names.setdefault(array.dtype, array.dtype.name)
    return Memory(("numpy", tuple(shape), name), array, address, dtype, array.nbytes)


# Of dtypes that were seen: numpy makes the name anew each time it is asked, which takes longer than a push.
_names: dict[np.dtype[Any], str] = {}


def place_of(value: Array, kinds: dict[str, Kind], key: str) -> tuple[int, int]:
    """Where a value of a key can be read, if it is what the key's value is like. `value` must be kept meanwhile."""
    # The common case by itself: for few bytes, all else takes longer than the push.
    if type(value) is np.ndarray and value.flags.c_contiguous:
        kind = kinds.get(key)
        if kind is not None and value.shape == kind[1] and _names.get(value.dtype) == kind[2]:
            return value.ctypes.data, value.nbytes
    return memory_of(value).checked(kinds, key).place


def room_of(home: Any) -> Room:
    """Where a value can be written."""
    if is_torch(home):
        direct = home.device.type == "cpu" and home.is_contiguous()
        # The memory is written behind autograd's back; parameters are read and written outside of it anyway.
        tensor = home if direct else home.detach().cpu().contiguous()
        return Room(home, tensor, (tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    if not isinstance(home, np.ndarray) or not home.flags.writeable:
        raise ValueError("out must be a numpy array that may be written to, or a torch tensor.")
    array = home if home.flags.c_contiguous else np.ascontiguousarray(home)
    return Room(home, array, (array.ctypes.data, array.nbytes))


def new_like(kind: Kind, rows: int | None = None) -> Any:
    """A new array for a value, or for some rows of it."""
    framework, shape, dtype = kind
    if rows is not None:
        shape = (rows, *shape[1:])
    if framework == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return np.empty(shape, np.dtype(dtype))


def numbers(ids: Array) -> np.ndarray[Any, Any]:
    """Row numbers as servers take them; negative ones become so large that they are out of every range."""
    if is_torch(ids):
        ids = ids.detach().cpu().numpy()
    wanted = np.asarray(ids)
    if wanted.size and wanted.dtype.kind not in "iu":
        raise ValueError(f"row numbers must be integers, not {wanted.dtype}.")
    return np.ascontiguousarray(wanted.reshape(-1).astype(np.int64)).view(np.uint64)
