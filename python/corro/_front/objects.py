"""Any Python object, broadcast or gathered.

It travels as cloudpickle's bytes, with a proof behind them of which rank of this job sent them, and for which call. Nothing
is unpickled before its proof is checked: bytes between hosts could have been changed on their way.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar

import cloudpickle

from corro import _native
from corro._front.adapter import CPU, INT64, UINT8
from corro._front.process_sets import ProcessSet, global_process_set

T = TypeVar("T")


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The object of rank `root_rank`, on every rank: root gets its own back, the others a copy.

    Any object that cloudpickle can pickle. Ranks other than the root may leave `obj` out.

    Example:
        >>> hvd.broadcast_object({"epoch": 3} if hvd.rank() == 0 else None, root_rank=0)
        {'epoch': 3}
    """
    name = name or "broadcast_object"
    call = _native.object_call(process_set.process_set_id, name)
    is_root = _native.rank() == root_rank
    data = _sealed(obj, call) if is_root else bytearray()
    length = ctypes.c_int64(len(data))
    _broadcast(ctypes.addressof(length), (), INT64, root_rank, f"{name}.length", process_set)
    if not is_root:
        data = bytearray(max(length.value, 0))
    memory = (ctypes.c_char * len(data)).from_buffer(data)
    _broadcast(ctypes.addressof(memory), (len(data),), UINT8, root_rank, f"{name}.data", process_set)
    return obj if is_root else _opened(bytes(data), root_rank, call)


# Behind each pickle.
_PROOF = 32


def _sealed(obj: Any, call: tuple[int, str, int]) -> bytearray:
    data = cloudpickle.dumps(obj)
    return bytearray(data + _native.object_proof(call, _native.rank(), data))


def _opened(sealed: bytes, sender: int, call: tuple[int, str, int]) -> Any:
    _native.check_object(call, sender, sealed)
    return cloudpickle.loads(memoryview(sealed)[:-_PROOF])


def _broadcast(
    address: int, shape: tuple[int, ...], dtype: int, root_rank: int, name: str, process_set: ProcessSet
) -> None:
    view = (address, shape, dtype, CPU)
    _native.run("broadcast", view, view, process_set.process_set_id, name, root=root_rank)


def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[T]:
    """The objects of all ranks, in the order of ranks, on every rank. Any object that cloudpickle can pickle.

    Example:
        >>> hvd.allgather_object(f"I am {hvd.rank()}")
        ['I am 0', 'I am 1']
    """
    name = name or "allgather_object"
    call = _native.object_call(process_set.process_set_id, name)
    data = _sealed(obj, call)
    ranks = _native.process_set(call[0]) or []
    lengths = gather_numbers([len(data)], f"{name}.length", process_set)
    joined = _allgather(data, UINT8, 1, f"{name}.data", process_set)
    objects: list[T] = []
    start = 0
    for sender, length in zip(ranks, lengths, strict=True):
        objects.append(_opened(joined[start : start + length], sender, call))
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
