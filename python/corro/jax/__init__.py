"""`import corro.jax as hvd`: data-parallel training for JAX, in Horovod's words, on Corro's engine."""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError(
        "corro.jax needs JAX 0.4.35 or newer, which is not installed here. Install it with `pip install jax`. "
        f"({error})"
    ) from error

from corro._front.basics import before_leaving as _before_leaving
from corro._front.basics import before_waiting as _before_waiting
from corro._front.basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    shutdown,
    start_timeline,
    stop_timeline,
)
from corro._front.engine_compression import compression_report, compression_state, load_compression_state
from corro._front.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from corro._front.watching import log
from corro.jax import data, elastic
from corro.jax._constants import cross_rank, cross_size, local_rank, local_size, rank, size
from corro.jax._eager import finish as _finish
from corro.jax.compression import Compression
from corro.jax.embedding import ShardedEmbedding
from corro.jax.functions import (
    allgather_object,
    average_metrics,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from corro.jax.gradients import grad, value_and_grad
from corro.jax.local import DiLoCo, Gossip, LocalSGD, Nesterov
from corro.jax.mpi_ops import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from corro.jax.optimizer import DistributedOptimizer

# JAX runs behind the program: what this rank has begun, the others wait for.
_before_leaving(_finish)
# A spare of an elastic job has time while it waits for its place; afterwards the others wait for it.
_before_waiting(_finish)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DiLoCo",
    "DistributedOptimizer",
    "Gossip",
    "HorovodInternalError",
    "LocalSGD",
    "Max",
    "Min",
    "Nesterov",
    "ProcessSet",
    "Product",
    "ShardedEmbedding",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "average_metrics",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "compression_report",
    "compression_state",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "data",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grad",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_compression_state",
    "local_rank",
    "local_size",
    "log",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "value_and_grad",
]
