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
from corro._front.auto_compression import Auto
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
from corro._front.engine_compression import EngineCompression, setting_for
from corro._front.objects import allgather_object, broadcast_object
from corro._front.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from corro._front.waiting import barrier, join, poll, synchronize
from corro._front.watching import log
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
    "log",
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
    compression: EngineCompression | Auto | str | None = None,
) -> Array:
    """Reduces the array over all ranks into a new one, or into `out`; averages unless `op` says otherwise.

    `op` is Average, Sum, Min, Max, Product or Adasum; `average` is its deprecated form. The input is multiplied by
    `prescale_factor`, the result by `postscale_factor`. Ranks find each other's arrays by `name`; without names by
    their order. `process_set` are the ranks that take part. Numbers and lists are taken as well. `compression` is what
    goes between hosts, such as "int8": see the guide to compression. Raises `ValueError` for a dtype that can't be
    reduced, `HorovodInternalError` if ranks disagree about shape, dtype or op, or if one is lost.

    Example:
        >>> hvd.allreduce(np.array([1.0, 2.0]), op=hvd.Sum)
        array([2., 4.])
        >>> hvd.allreduce(np.ones(2, np.float32), name="of few bytes", compression="int8")
        array([1., 1.], dtype=float32)
    """
    source = readable(array)
    result = place_for(out, source)
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    spec = None if compression is None else setting_for(compression, name, source.nbytes)
    _native.run("allreduce", view(source), view(result), process_set.process_set_id, name, *numbers, compression=spec)
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
    """Starts an `allreduce` and gives a handle, for `poll` and `synchronize`.

    Example:
        >>> handle = hvd.allreduce_async(np.array([1.0, 2.0]), op=hvd.Sum)
        >>> hvd.synchronize(handle)
        array([2., 4.])
    """
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
    """`allreduce` in place: the array itself gets the result, and is given back.

    Example:
        >>> array = np.array([1.0, 2.0])
        >>> hvd.allreduce_(array, op=hvd.Sum) is array
        True
        >>> array
        array([2., 4.])
    """
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
    """Starts an `allreduce_` and gives a handle. Leave the array alone until `synchronize`.

    Example:
        >>> array = np.array([1.0, 2.0])
        >>> handle = hvd.allreduce_async_(array, op=hvd.Sum)
        >>> hvd.synchronize(handle)
        array([2., 4.])
    """
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
    """`allreduce` of several arrays as one operation: none is ready before all are. Raises `ValueError` for an empty list.

    Example:
        >>> hvd.grouped_allreduce([np.ones(1), np.ones(2)], op=hvd.Sum)
        [array([2.]), array([2., 2.])]
    """
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
    """`grouped_allreduce` in place: the arrays themselves get the results, and are given back.

    Example:
        >>> arrays = [np.ones(1), np.ones(2)]
        >>> hvd.grouped_allreduce_(arrays, op=hvd.Sum)
        (array([2.]), array([2., 2.]))
    """
    homes = [writable(array) for array in non_empty(arrays)]
    places = [view(home) for home in homes]
    pairs = list(zip(arrays, homes, strict=True))
    numbers = (reduction(op, average, process_set), prescale_factor, postscale_factor)
    set_id = process_set.process_set_id
    handle = _native.submit_group("allreduce", places, places, set_id, name, hold(*homes), pairs, put_back, *numbers)
    return synchronize(handle)


def allgather(array: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """The arrays of all ranks, one behind the other along the first dimension, in the order of ranks.

    They may differ in their first dimension only.

    Example:
        >>> hvd.allgather(np.array([hvd.rank()]))
        array([0, 1])
    """
    return synchronize(allgather_async(array, name, process_set))


def allgather_async(array: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts an `allgather` and gives a handle, for `poll` and `synchronize`.

    Example:
        >>> handle = hvd.allgather_async(np.array([hvd.rank()]))
        >>> hvd.synchronize(handle)
        array([0, 1])
    """
    source = readable(array)
    set_id = process_set.process_set_id
    return _native.submit("allgather", view(source), None, set_id, name, hold(source), source, from_output)


def grouped_allgather(
    arrays: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Array, ...]:
    """`allgather` of several arrays as one operation.

    Example:
        >>> hvd.grouped_allgather([np.array([hvd.rank()]), np.array([7])])
        (array([0, 1]), array([7, 7]))
    """
    sources = [readable(array) for array in non_empty(arrays)]
    places = [view(source) for source in sources]
    set_id = process_set.process_set_id
    return synchronize(
        _native.submit_group("allgather", places, None, set_id, name, hold(*sources), sources, from_output)
    )


def broadcast(
    array: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """The array of rank `root_rank`, on every rank. The others may give None: they learn shape and dtype from the root.

    Raises `HorovodInternalError` if another rank gives an array of another shape or dtype.

    Example:
        >>> hvd.broadcast(np.array([1, 2]) if hvd.rank() == 0 else None, root_rank=0)
        array([1, 2])
    """
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
    """`broadcast` in place: the array itself gets the elements of `root_rank`, and is given back.

    Example:
        >>> hvd.broadcast_(np.array([hvd.rank()]), root_rank=1)
        array([1])
    """
    return synchronize(broadcast_async_(array, root_rank, name, process_set))


def broadcast_async_(
    array: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a `broadcast_` and gives a handle. Leave the array alone until `synchronize`.

    Example:
        >>> handle = hvd.broadcast_async_(np.array([hvd.rank()]), root_rank=1)
        >>> hvd.synchronize(handle)
        array([1])
    """
    home = writable(array)
    place = view(home)
    set_id = process_set.process_set_id
    return _native.submit("broadcast", place, place, set_id, name, hold(home), (array, home), put_back, root=root_rank)


def alltoall(
    array: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends some rows to each rank, and gives the rows received, in the order of ranks.

    `splits[r]` rows go to rank r: the first ones to rank 0, and so on. Then the result is a pair: the rows, and how
    many came from each rank. Without `splits` all ranks get equally many. Raises `ValueError` for splits that do not
    fit.

    Example:
        >>> hvd.alltoall(np.array([hvd.rank()] * 2))
        array([0, 1])
        >>> rows, received = hvd.alltoall(np.array([hvd.rank()] * 2), splits=[1, 1])
        >>> received
        array([1, 1], dtype=int32)
    """
    output, received = synchronize(alltoall_async(array, splits, name, process_set))
    return output if splits is None else (output, received)


def alltoall_async(
    array: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts an `alltoall` and gives a handle. `synchronize` gives the rows, and how many came from each rank.

    Example:
        >>> handle = hvd.alltoall_async(np.array([hvd.rank()] * 2))
        >>> rows, received = hvd.synchronize(handle)
        >>> rows
        array([0, 1])
    """
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
    """Reduces over all ranks and gives each its share of the rows; the first ranks get one more if they can't be even.

    `op` is Average or Sum. Raises `ValueError` for a scalar, which has no rows.

    Example:
        >>> hvd.reducescatter(np.ones(2), op=hvd.Sum)
        array([2.])
    """
    return synchronize(reducescatter_async(array, name, op, process_set, prescale_factor, postscale_factor))


def reducescatter_async(
    array: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a `reducescatter` and gives a handle, for `poll` and `synchronize`.

    Example:
        >>> handle = hvd.reducescatter_async(np.ones(2), op=hvd.Sum)
        >>> hvd.synchronize(handle)
        array([2.])
    """
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
    """`reducescatter` of several arrays as one operation.

    Example:
        >>> hvd.grouped_reducescatter([np.ones(2), np.ones(4)], op=hvd.Sum)
        [array([2.]), array([2., 2.])]
    """
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
    """An uninitialised array in memory that the ranks of the host share; where they have several hosts, an ordinary one.

    `allreduce_` of such an array (1 MiB and more) copies nothing. All ranks of the set must call this, in the same order
    and with the same shape. Raises `ValueError` for a dtype that can't be reduced.

    Example:
        >>> array = hvd.shared_empty(2)
        >>> array[:] = 1
        >>> hvd.allreduce_(array, op=hvd.Sum)
        array([2., 2.])
    """
    array = np.empty(0, dtype)
    view(array)  # raises for a dtype that is not supported
    size = int(np.prod(shape, dtype=np.int64)) * array.itemsize
    memory = _native.shared_memory(process_set.process_set_id, size) if size else None
    if memory is None:
        return np.empty(shape, dtype)
    return np.asarray(memory)[:size].view(array.dtype).reshape(shape)
