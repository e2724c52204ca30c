"""`import corro.numpy as hvd`: the collectives on numpy arrays, for programs without a training framework.

Results are new arrays, or go to `out`; a trailing underscore means in place. `broadcast` needs an array on the root only.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

try:
    import numpy as np
except ImportError as error:
    raise ImportError("corro.numpy needs numpy: install it with `pip install numpy`.") from error

from corro import _native
from corro._errors import HorovodInternalError, HostsUpdatedInterrupt
from corro._front.adapter import CPU, View
from corro._front.arguments import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    non_empty,
    reduction,
    require_rows,
    rows_to_send,
    scatter_reduction,
)
from corro._front.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from corro._front.objects import allgather_object, broadcast_object
from corro._front.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from corro._front.waiting import barrier, join, poll, synchronize
from corro._native import Output

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async_",
    "broadcast_object",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shared_empty",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

Array = np.ndarray[Any, Any]

_DTYPES = {
    np.dtype(name): number
    for number, name in enumerate(
        ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
    )
} | {np.dtype("uint32"): 11, np.dtype("uint64"): 12}


def _view(array: Array) -> View:
    number = _DTYPES.get(array.dtype)
    if number is None:
        # ml_dtypes gives numpy its bfloat16; it need not be installed for us to know it by name.
        if array.dtype.name != "bfloat16":
            raise ValueError(f"an array of {array.dtype} is not supported; convert it first, with array.astype.")
        number = 10
    return (array.ctypes.data, array.shape, number, CPU)


def _readable(array: Any) -> Array:
    """A contiguous array; a copy only if it must be. Numbers and lists are taken as well."""
    array = np.asarray(array)
    # ascontiguousarray would make a one-element vector of a scalar.
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _writable(array: Any) -> Array:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"an operation in place needs a numpy array, not {type(array).__name__}.")
    if not array.flags.writeable:
        raise ValueError("an operation in place needs an array that may be written to; this one is read-only.")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _result(out: Array | None, source: Array) -> Array:
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


def _hold(*arrays: Array) -> Any:
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


def _put_back(places: tuple[Array, Array], _output: Output | None = None) -> Array:
    array, home = places
    if home is not array:
        array[...] = home
    return array


def _from_output(like: Array, output: Output | None) -> Array:
    assert output is not None, "this kind of operation has a result of its own"
    if output.nbytes == 0:
        return np.empty(output.shape, like.dtype)
    return np.asarray(output).view(like.dtype).reshape(output.shape)


def _with_splits(like: Array, output: Output | None) -> tuple[Array, Array]:
    assert output is not None, "an alltoall has a result of its own"
    return _from_output(like, output), np.array(output.received_splits, np.int32)


def allreduce(
    array: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    out: Array | None = None,
) -> Array:
    """Reduces the array over all ranks of the set into a new one, or into `out`; Average unless `op` says otherwise."""
    source = _readable(array)
    result = _result(out, source)
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    _native.run("allreduce", _view(source), _view(result), process_set.process_set_id, name, *numbers)
    return result


def allreduce_async(
    array: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    out: Array | None = None,
) -> int:
    source = _readable(array)
    result = _result(out, source)
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    return _native.submit(
        "allreduce", _view(source), _view(result), set_id, name, _hold(source, result), result, None, *numbers
    )


def allreduce_(
    array: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    home = _writable(array)
    place = _view(home)
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    _native.run("allreduce", place, place, process_set.process_set_id, name, *numbers)
    return _put_back((array, home))


def allreduce_async_(
    array: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    home = _writable(array)
    place = _view(home)
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    return _native.submit("allreduce", place, place, set_id, name, _hold(home), (array, home), _put_back, *numbers)


def grouped_allreduce(
    arrays: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """`allreduce` of every array, as one operation."""
    sources = [_readable(array) for array in non_empty(arrays)]
    results = [np.empty_like(source) for source in sources]
    places, outputs = [_view(a) for a in sources], [_view(a) for a in results]
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    handle = _native.submit_group("allreduce", places, outputs, set_id, name, _hold(*sources), results, None, *numbers)
    return list(synchronize(handle))


def grouped_allreduce_(
    arrays: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array, ...]:
    homes = [_writable(array) for array in non_empty(arrays)]
    places = [_view(home) for home in homes]
    pairs = list(zip(arrays, homes, strict=True))
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    handle = _native.submit_group("allreduce", places, places, set_id, name, _hold(*homes), pairs, _put_back, *numbers)
    return synchronize(handle)


def allgather(array: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """The arrays of all ranks, concatenated along the first dimension in rank order."""
    return synchronize(allgather_async(array, name, process_set))


def allgather_async(array: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    source = _readable(array)
    set_id = process_set.process_set_id
    return _native.submit("allgather", _view(source), None, set_id, name, _hold(source), source, _from_output)


def grouped_allgather(
    arrays: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Array, ...]:
    """`allgather` of every array, as one operation."""
    sources = [_readable(array) for array in non_empty(arrays)]
    places = [_view(source) for source in sources]
    set_id = process_set.process_set_id
    return synchronize(
        _native.submit_group("allgather", places, None, set_id, name, _hold(*sources), sources, _from_output)
    )


def broadcast(
    array: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Root's array on every rank. The others may pass None: they learn shape and dtype from the root."""
    is_root = _native.rank() == root_rank
    source = _readable(array) if is_root else None
    described = (source.shape, source.dtype) if source is not None else None
    shape, dtype = broadcast_object(described, root_rank, f"{name or 'array'}.shape", process_set)
    if source is None and array is not None:
        _check_like(np.asarray(array), shape, dtype, root_rank)
    result = source.copy() if source is not None else np.empty(shape, dtype)
    return broadcast_(result, root_rank, name, process_set)


def _check_like(array: Array, shape: tuple[int, ...], dtype: Any, root_rank: int) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise HorovodInternalError(
            f"Mismatched BROADCAST tensor shapes or data types: root rank {root_rank} sends {dtype} {list(shape)}, "
            f"but rank {_native.rank()} expects {array.dtype} {list(array.shape)}. Pass None to take what root sends."
        )


def broadcast_(
    array: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    return synchronize(broadcast_async_(array, root_rank, name, process_set))


def broadcast_async_(
    array: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    home = _writable(array)
    place = _view(home)
    set_id = process_set.process_set_id
    return _native.submit(
        "broadcast", place, place, set_id, name, _hold(home), (array, home), _put_back, root=root_rank
    )


def alltoall(
    array: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends consecutive rows to each rank; gives the rows received, and how many from whom if `splits` was given."""
    output, received = synchronize(alltoall_async(array, splits, name, process_set))
    return output if splits is None else (output, received)


def alltoall_async(
    array: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    source = _readable(array)
    given: Any = [] if splits is None else np.asarray(splits, np.int32 if not len(splits) else None)
    numbers = rows_to_send(source.shape, given, np.ndim(given), process_set)
    sent = source[: sum(numbers)] if numbers else source
    set_id = process_set.process_set_id
    return _native.submit(
        "alltoall", _view(sent), None, set_id, name, _hold(source, sent), sent, _with_splits, splits=numbers
    )


def reducescatter(
    array: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduces over all ranks and gives each its share of the rows."""
    return synchronize(reducescatter_async(array, name, op, process_set, prescale_factor, postscale_factor))


def reducescatter_async(
    array: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    source = _with_rows(array)
    numbers = (scatter_reduction(op), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    return _native.submit(
        "reducescatter", _view(source), None, set_id, name, _hold(source), source, _from_output, *numbers
    )


def grouped_reducescatter(
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """`reducescatter` of every array, as one operation."""
    sources = [_with_rows(array) for array in non_empty(arrays)]
    places = [_view(source) for source in sources]
    numbers = (scatter_reduction(op), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    handle = _native.submit_group(
        "reducescatter", places, None, set_id, name, _hold(*sources), sources, _from_output, *numbers
    )
    return list(synchronize(handle))


def _with_rows(array: Any) -> Array:
    source = _readable(array)
    require_rows("reducescatter", source.shape)
    return source


def shared_empty(shape: Any, dtype: Any = np.float64, process_set: ProcessSet = global_process_set) -> Array:
    """An uninitialised array in memory that the ranks of the host share; elsewhere, an ordinary one.

    `allreduce_` of such an array (1 MiB and more) copies nothing. All ranks of the set must call this, in the same order
    and with the same shape.
    """
    array = np.empty(0, dtype)
    _view(array)  # raises for a dtype that is not supported
    size = int(np.prod(shape, dtype=np.int64)) * array.itemsize
    memory = _native.shared_memory(process_set.process_set_id, size) if size else None
    if memory is None:
        return np.empty(shape, dtype)
    return np.asarray(memory)[:size].view(array.dtype).reshape(shape)
