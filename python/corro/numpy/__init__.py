"""`import corro.numpy as hvd`: the collectives on numpy arrays, for programs without a training framework.

Results are new arrays, or go to `out`; a trailing underscore means in place. `broadcast` needs an array on the root only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import numpy as np
except ImportError as error:
    raise ImportError("corro.numpy needs numpy: install it with `pip install numpy`.") from error

from corro import _native
from corro._errors import HorovodInternalError, HostsUpdatedInterrupt
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
from corro.numpy._arrays import Array, from_output, hold, place_for, put_back, readable, view, with_splits, writable

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
    source = readable(array)
    result = place_for(out, source)
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    _native.run("allreduce", view(source), view(result), process_set.process_set_id, name, *numbers)
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
    source = readable(array)
    result = place_for(out, source)
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    return _native.submit(
        "allreduce", view(source), view(result), set_id, name, hold(source, result), result, None, *numbers
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
    home = writable(array)
    place = view(home)
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    _native.run("allreduce", place, place, process_set.process_set_id, name, *numbers)
    return put_back((array, home))


def allreduce_async_(
    array: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    home = writable(array)
    place = view(home)
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    return _native.submit("allreduce", place, place, set_id, name, hold(home), (array, home), put_back, *numbers)


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
    sources = [readable(array) for array in non_empty(arrays)]
    results = [np.empty_like(source) for source in sources]
    places, outputs = [view(a) for a in sources], [view(a) for a in results]
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    handle = _native.submit_group("allreduce", places, outputs, set_id, name, hold(*sources), results, None, *numbers)
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
    homes = [writable(array) for array in non_empty(arrays)]
    places = [view(home) for home in homes]
    pairs = list(zip(arrays, homes, strict=True))
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    handle = _native.submit_group("allreduce", places, places, set_id, name, hold(*homes), pairs, put_back, *numbers)
    return synchronize(handle)


def allgather(array: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """The arrays of all ranks, concatenated along the first dimension in rank order."""
    return synchronize(allgather_async(array, name, process_set))


def allgather_async(array: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    source = readable(array)
    set_id = process_set.process_set_id
    return _native.submit("allgather", view(source), None, set_id, name, hold(source), source, from_output)


def grouped_allgather(
    arrays: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Array, ...]:
    """`allgather` of every array, as one operation."""
    sources = [readable(array) for array in non_empty(arrays)]
    places = [view(source) for source in sources]
    set_id = process_set.process_set_id
    return synchronize(
        _native.submit_group("allgather", places, None, set_id, name, hold(*sources), sources, from_output)
    )


def broadcast(
    array: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Root's array on every rank. The others may pass None: they learn shape and dtype from the root."""
    is_root = _native.rank() == root_rank
    source = readable(array) if is_root else None
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
    home = writable(array)
    place = view(home)
    set_id = process_set.process_set_id
    return _native.submit(
        "broadcast", place, place, set_id, name, hold(home), (array, home), put_back, root=root_rank
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
    source = readable(array)
    given: Any = [] if splits is None else np.asarray(splits, np.int32 if not len(splits) else None)
    numbers = rows_to_send(source.shape, given, np.ndim(given), process_set)
    sent = source[: sum(numbers)] if numbers else source
    set_id = process_set.process_set_id
    return _native.submit(
        "alltoall", view(sent), None, set_id, name, hold(source, sent), sent, with_splits, splits=numbers
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
        "reducescatter", view(source), None, set_id, name, hold(source), source, from_output, *numbers
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
    places = [view(source) for source in sources]
    numbers = (scatter_reduction(op), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    handle = _native.submit_group(
        "reducescatter", places, None, set_id, name, hold(*sources), sources, from_output, *numbers
    )
    return list(synchronize(handle))


def _with_rows(array: Any) -> Array:
    source = readable(array)
    require_rows("reducescatter", source.shape)
    return source


def shared_empty(shape: Any, dtype: Any = np.float64, process_set: ProcessSet = global_process_set) -> Array:
    """An uninitialised array in memory that the ranks of the host share; elsewhere, an ordinary one.

    `allreduce_` of such an array (1 MiB and more) copies nothing. All ranks of the set must call this, in the same order
    and with the same shape.
    """
    array = np.empty(0, dtype)
    view(array)  # raises for a dtype that is not supported
    size = int(np.prod(shape, dtype=np.int64)) * array.itemsize
    memory = _native.shared_memory(process_set.process_set_id, size) if size else None
    if memory is None:
        return np.empty(shape, dtype)
    return np.asarray(memory)[:size].view(array.dtype).reshape(shape)
