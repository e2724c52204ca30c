"""`import corro.torch as hvd`: Horovod's PyTorch interface, on Corro's engine."""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(
        "corro.torch needs PyTorch 2.4 or newer, which is not installed here. Install it with `pip install torch`. "
        f"({error})"
    ) from error

from corro._front.basics import before_waiting as _before_waiting
from corro._front.engine_compression import compression_report
from corro._front.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from corro._front.watching import log
from corro.torch import elastic
from corro.torch._shared import shared_empty
from corro.torch.compression import Compression
from corro.torch.custom import GradBucket, OwnCompressor, allreduce_future, register_compressor
from corro.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from corro.torch.local import DiLoCo, Gossip, LocalSGD, Nesterov
from corro.torch.mpi_ops import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    reducescatter,
    reducescatter_async,
    rocm_built,
    shutdown,
    size,
    sparse_allreduce_async,
    start_timeline,
    stop_timeline,
    synchronize,
)
from corro.torch.onebit_adam import OneBitAdam
from corro.torch.optimizer import DistributedOptimizer
from corro.torch.sync_batch_norm import SyncBatchNorm


def _make_an_optimizer() -> None:
    """The first one imports much of torch, which takes seconds."""
    _torch.optim.SGD([_torch.nn.Parameter(_torch.zeros(1))], lr=0.1)


_before_waiting(_make_an_optimizer)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DiLoCo",
    "DistributedOptimizer",
    "Gossip",
    "GradBucket",
    "HorovodInternalError",
    "LocalSGD",
    "Max",
    "Min",
    "Nesterov",
    "OneBitAdam",
    "OwnCompressor",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "allreduce_future",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "compression_report",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
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
    "log",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "register_compressor",
    "remove_process_set",
    "rocm_built",
    "shared_empty",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
