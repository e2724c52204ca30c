"""The operations of `corro.torch`, with Horovod's names and signatures.

Every operation comes as a function that waits for its result and as `..._async`, which returns a handle for `poll` and
`synchronize`; a trailing underscore means in place. Only the waiting, out-of-place ones are differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from corro import _native
from corro._errors import HorovodInternalError
from corro._front.arguments import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    reduction,
    require_rows,
    rows_to_send,
    scatter_reduction,
    set_size,
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
from corro._front.engine_compression import is_for_engine, setting_for
from corro._front.process_sets import ProcessSet, global_process_set
from corro._front.waiting import barrier, poll, synchronize
from corro.common.basics import HorovodBasics
from corro.torch import _autograd, _compiled, _eager
from corro.torch._grouped import (
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from corro.torch.compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
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
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

is_compiling = torch.compiler.is_compiling


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces the tensor over all ranks into a new one, of the same shape on all ranks; averages unless `op` says otherwise.

    `op` is Average, Sum, Min, Max, Product or Adasum; `average` is its deprecated form. The input is multiplied by
    `prescale_factor`, the result by `postscale_factor`. `compression` says what travels, such as `hvd.Compression.fp16`
    or `hvd.Compression.int8()`.
    Ranks find each other's tensors by `name`; without names by their order. `process_set` are the ranks that take part.
    Differentiable. Raises `HorovodInternalError` if ranks disagree about shape, dtype or op, or if one is lost.

    Example:
        >>> hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum)
        tensor([2., 4.])
    """
    op = reduction(op, average, process_set)
    if is_for_engine(compression):
        spec = setting_for(compression, name, tensor.nbytes)
        numbers = (op, prescale_factor, postscale_factor, 0, None, spec)
        if tensor.requires_grad and torch.is_grad_enabled():
            return _autograd.Allreduce.apply(tensor, process_set, name, *numbers)
        return _eager.into_new("allreduce", tensor, process_set, name, *numbers)
    packed, context = compression.compress(tensor)
    if is_compiling():
        reduced = _compiled.allreduce(packed, process_set, name, op, prescale_factor, postscale_factor)
    elif packed.requires_grad and torch.is_grad_enabled():
        reduced = _autograd.Allreduce.apply(packed, process_set, name, op, prescale_factor, postscale_factor)
    else:
        reduced = _eager.into_new("allreduce", packed, process_set, name, op, prescale_factor, postscale_factor)
    return compression.decompress(reduced, context)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an `allreduce` and gives a handle, for `poll` and `synchronize`.

    Example:
        >>> handle = hvd.allreduce_async(torch.tensor([1.0, 2.0]), op=hvd.Sum)
        >>> hvd.synchronize(handle)
        tensor([2., 4.])
    """
    op = reduction(op, average, process_set)
    return _eager.into_new_async("allreduce", tensor, process_set, name, op, prescale_factor, postscale_factor)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """`allreduce` in place: the tensor itself gets the result, and is given back.

    Example:
        >>> tensor = torch.tensor([1.0, 2.0])
        >>> hvd.allreduce_(tensor, op=hvd.Sum) is tensor
        True
        >>> tensor
        tensor([2., 4.])
    """
    op = reduction(op, average, process_set)
    if is_compiling():
        return _compiled.allreduce_(tensor, process_set, name, op, prescale_factor, postscale_factor)
    return _eager.in_place("allreduce", tensor, process_set, name, op, prescale_factor, postscale_factor)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an `allreduce_` and gives a handle. Leave the tensor alone until `synchronize`.

    Example:
        >>> tensor = torch.tensor([1.0, 2.0])
        >>> handle = hvd.allreduce_async_(tensor, op=hvd.Sum)
        >>> hvd.synchronize(handle)
        tensor([2., 4.])
    """
    op = reduction(op, average, process_set)
    return _eager.in_place_async("allreduce", tensor, process_set, name, op, prescale_factor, postscale_factor)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts to reduce a sparse tensor, by Sum or Average. Gives a function that waits and gives the sparse result.

    Example:
        >>> tensor = torch.sparse_coo_tensor([[hvd.rank()]], [1.0], size=(2,))
        >>> wait = hvd.sparse_allreduce_async(tensor, name="embedding", op=hvd.Sum)
        >>> wait().to_dense()
        tensor([1., 1.])
    """
    tensor = tensor.coalesce() if not tensor.is_coalesced() else tensor
    indices = tensor.indices().t().contiguous()
    names = (None, None) if name is None else (f"{name}.indices", f"{name}.values")
    indices_handle = allgather_async(indices, names[0], process_set)
    values_handle = allgather_async(tensor.values(), names[1], process_set)

    def wait() -> torch.Tensor:
        # The second is waited for even if the first fails: nothing of a failed step may stay in flight.
        try:
            all_indices = synchronize(indices_handle)
        finally:
            all_values = synchronize(values_handle)
        if op == Average:
            all_values = all_values / set_size(process_set)
        return torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape)

    return wait


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The tensors of all ranks, one behind the other along the first dimension, in the order of ranks.

    They may differ in their first dimension only. Differentiable. Raises `IndexError` for a scalar, which has no first
    dimension.

    Example:
        >>> hvd.allgather(torch.tensor([hvd.rank()]))
        tensor([0, 1])
    """
    if not tensor.shape:
        raise IndexError("allgather of a rank-zero tensor: a scalar has no first dimension; use tensor.reshape(1).")
    if is_compiling():
        return _compiled.allgather(tensor, process_set, name)
    if tensor.requires_grad and torch.is_grad_enabled():
        return _autograd.Allgather.apply(tensor, process_set, name)
    return _eager.resized("allgather", tensor, process_set, name)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts an `allgather` and gives a handle, for `poll` and `synchronize`.

    Example:
        >>> handle = hvd.allgather_async(torch.tensor([hvd.rank()]))
        >>> hvd.synchronize(handle)
        tensor([0, 1])
    """
    return _eager.resized_async("allgather", tensor, process_set, name)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A new tensor with the elements that rank `root_rank` has (its number in the job, also with a `process_set`).

    All ranks give a tensor of the same shape and dtype. Differentiable.

    Example:
        >>> hvd.broadcast(torch.tensor([hvd.rank()]), root_rank=1)
        tensor([1])
    """
    if is_compiling():
        return _compiled.broadcast(tensor, root_rank, process_set, name)
    if tensor.requires_grad and torch.is_grad_enabled():
        return _autograd.Broadcast.apply(tensor, root_rank, process_set, name)
    return _eager.into_new("broadcast", tensor, process_set, name, Sum, 1.0, 1.0, root_rank)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a `broadcast` and gives a handle, for `poll` and `synchronize`.

    Example:
        >>> handle = hvd.broadcast_async(torch.tensor([hvd.rank()]), root_rank=1)
        >>> hvd.synchronize(handle)
        tensor([1])
    """
    return _eager.into_new_async("broadcast", tensor, process_set, name, Sum, 1.0, 1.0, root_rank)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """`broadcast` in place: the tensor itself gets the elements of `root_rank`, and is given back.

    Example:
        >>> tensor = torch.tensor([hvd.rank()])
        >>> hvd.broadcast_(tensor, root_rank=1) is tensor
        True
        >>> tensor
        tensor([1])
    """
    if is_compiling():
        return _compiled.broadcast_(tensor, root_rank, process_set, name)
    return _eager.in_place("broadcast", tensor, process_set, name, Sum, 1.0, 1.0, root_rank)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a `broadcast_` and gives a handle. Leave the tensor alone until `synchronize`.

    Example:
        >>> tensor = torch.tensor([hvd.rank()])
        >>> handle = hvd.broadcast_async_(tensor, root_rank=1)
        >>> hvd.synchronize(handle)
        tensor([1])
    """
    return _eager.in_place_async("broadcast", tensor, process_set, name, Sum, 1.0, 1.0, root_rank)


@overload
def alltoall(
    tensor: torch.Tensor, splits: None = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor: ...
@overload
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends some rows to each rank, and gives the rows received, in the order of ranks.

    `splits[r]` rows go to rank r: the first ones to rank 0, and so on. Then the result is a pair: the rows, and how
    many came from each rank. Without `splits` all ranks get equally many. Differentiable. Raises `ValueError` for
    splits that do not fit.

    Example:
        >>> hvd.alltoall(torch.tensor([hvd.rank()] * 2))
        tensor([0, 1])
        >>> rows, received = hvd.alltoall(torch.tensor([hvd.rank()] * 2), splits=[1, 1])
        >>> received
        tensor([1, 1], dtype=torch.int32)
    """
    if is_compiling():
        return _compiled.alltoall(tensor, splits, process_set, name)
    numbers, device = _splits(tensor, splits, process_set)
    if tensor.requires_grad and torch.is_grad_enabled():
        both = _autograd.Alltoall.apply(tensor, numbers, device, process_set, name)
    else:
        both = _eager.alltoall(tensor, numbers, device, process_set, name)
    return both[0] if splits is None else both


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an `alltoall` and gives a handle. `synchronize` gives the rows, and how many came from each rank.

    Example:
        >>> handle = hvd.alltoall_async(torch.tensor([hvd.rank()] * 2))
        >>> rows, received = hvd.synchronize(handle)
        >>> rows
        tensor([0, 1])
    """
    numbers, device = _splits(tensor, splits, process_set)
    return _eager.alltoall_async(tensor, numbers, device, process_set, name)


def _splits(tensor: torch.Tensor, splits: Any, process_set: ProcessSet) -> tuple[list[int], Any]:
    """The rows for each rank, and the device on which the answer to them is wanted."""
    device, dimensions = None, 1
    if isinstance(splits, torch.Tensor):
        if splits.dtype != torch.int32:
            raise ValueError(f"splits must be a tensor of torch.int32, not of {splits.dtype}.")
        device, dimensions, splits = splits.device, splits.dim(), splits.reshape(-1).tolist()
    return rows_to_send(tensor.shape, splits if splits is not None else [], dimensions, process_set), device


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces over all ranks and gives each its share of the rows; the first ranks get one more if they can't be even.

    `op` is Average or Sum. Differentiable. Raises `ValueError` for a scalar, which has no rows.

    Example:
        >>> hvd.reducescatter(torch.ones(2), op=hvd.Sum)
        tensor([2.])
    """
    op = scatter_reduction(op)
    require_rows("reducescatter", tensor.shape)
    packed, context = compression.compress(tensor)
    if is_compiling():
        part = _compiled.reducescatter(packed, process_set, name, op, prescale_factor, postscale_factor)
    elif packed.requires_grad and torch.is_grad_enabled():
        part = _autograd.Reducescatter.apply(packed, process_set, name, op, prescale_factor, postscale_factor)
    else:
        part = _eager.resized("reducescatter", packed, process_set, name, op, prescale_factor, postscale_factor)
    return compression.decompress(part, context)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a `reducescatter` and gives a handle, for `poll` and `synchronize`.

    Example:
        >>> handle = hvd.reducescatter_async(torch.ones(2), op=hvd.Sum)
        >>> hvd.synchronize(handle)
        tensor([2.])
    """
    op = scatter_reduction(op)
    require_rows("reducescatter", tensor.shape)
    return _eager.resized_async("reducescatter", tensor, process_set, name, op, prescale_factor, postscale_factor)


def join(device: int = -1) -> int:
    """This rank has no more data: until all have joined it takes part with zeros. Gives the rank that joined last.

    `device` is accepted and not needed.

    Example:
        >>> for _ in range(1 + hvd.rank()):  # a batch more on rank 1
        ...     _ = hvd.allreduce(torch.ones(1), op=hvd.Sum)
        >>> last = hvd.join()
        >>> 0 <= last < hvd.size()
        True
    """
    return _native.join()


# Kept for scripts that reach for the object behind the functions above.
_basics = HorovodBasics()
