"""`import corro.tensorflow as hvd`: Horovod's TensorFlow interface, on Corro's engine."""

from __future__ import annotations

try:
    import tensorflow as _tf  # noqa: F401
except ImportError as error:
    raise ImportError(
        "corro.tensorflow needs TensorFlow 2.16 or newer, which is not installed here. Install it with "
        f"`pip install tensorflow`. ({error})"
    ) from error

from corro._front.basics import elastic_enabled
from corro._front.engine_compression import compression_report, compression_state, load_compression_state
from corro._front.watching import log
from corro.tensorflow import _gradients, elastic
from corro.tensorflow._dense import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from corro.tensorflow.compression import Compression
from corro.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from corro.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from corro.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from corro.tensorflow.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
from corro.tensorflow.mpi_ops import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    ccl_built,
    check_num_rank_power_of_2,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    gpu_available,
    grouped_allgather,
    handle_average_backwards_compatibility,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)
from corro.tensorflow.optimizer import DistributedOptimizer
from corro.tensorflow.sync_batch_norm import SyncBatchNormalization
from corro.tensorflow.util import _executing_eagerly as _executing_eagerly
from corro.tensorflow.util import refs_to_vars, vars_to_refs

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "LocalGradientAggregationHelperEager",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_num_rank_power_of_2",
    "compression_report",
    "compression_state",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "elastic_enabled",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_compression_state",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "log",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "vars_to_refs",
]

del _gradients
