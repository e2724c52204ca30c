"""Any Python object, broadcast or gathered. It travels as cloudpickle's bytes, and only over the engine's own links."""

from __future__ import annotations

import ctypes
import io
from typing import Any, TypeVar

import cloudpickle

from corro import _native
from corro._front.adapter import CPU, INT64, UINT8
from corro._front.process_sets import ProcessSet, global_process_set

T = TypeVar("T")


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Root's object, on every rank: root gets its own back, the others a copy."""
    name = name or "broadcast_object"
    is_root = _native.rank() == root_rank
    data = bytearray(cloudpickle.dumps(obj)) if is_root else bytearray()
    length = ctypes.c_int64(len(data))
    _broadcast(ctypes.addressof(length), (), INT64, root_rank, f"{name}.length", process_set)
    if not is_root:
        data = bytearray(length.value)
    memory = (ctypes.c_char * len(data)).from_buffer(data)
    _broadcast(ctypes.addressof(memory), (len(data),), UINT8, root_rank, f"{name}.data", process_set)
    return obj if is_root else cloudpickle.load(io.BytesIO(data))


def _broadcast(
    address: int, shape: tuple[int, ...], dtype: int, root_rank: int, name: str, process_set: ProcessSet
) -> None:
    view = (address, shape, dtype, CPU)
    _native.run("broadcast", view, view, process_set.process_set_id, name, root=root_rank)


def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[T]:
    """The objects of all ranks, in rank order, on every rank."""
    name = name or "allgather_object"
    data = bytearray(cloudpickle.dumps(obj))
    lengths = gather_numbers([len(data)], f"{name}.length", process_set)
    joined = _allgather(data, UINT8, 1, f"{name}.data", process_set)
    objects: list[T] = []
    start = 0
    for length in lengths:
        objects.append(cloudpickle.loads(joined[start : start + length]))
        start += length
    return objects


def gather_numbers(numbers: list[int], name: str | None, process_set: ProcessSet = global_process_set) -> list[int]:
    """The integers of all ranks, one rank's after the other's."""
    data = bytearray((ctypes.c_int64 * len(numbers))(*numbers))
    joined = _allgather(data, INT64, 8, name, process_set)
    return list((ctypes.c_int64 * (len(joined) // 8)).from_buffer_copy(joined))


def _allgather(data: bytearray, dtype: int, item: int, name: str | None, process_set: ProcessSet) -> bytes:
    memory = (ctypes.c_char * len(data)).from_buffer(data)
    view = (ctypes.addressof(memory), (len(data) // item,), dtype, CPU)
    output = _native.run("allgather", view, None, process_set.process_set_id, name)
    assert output is not None, "an allgather has a result"
    return ctypes.string_at(output.address, output.nbytes)
