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
from corro.tensorflow import _gradients, elastic, mpi_ops
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
from corro.tensorflow.mpi_ops import *  # noqa: F403 - the operations; mpi_ops.__all__ lists them
from corro.tensorflow.optimizer import DistributedOptimizer
from corro.tensorflow.sync_batch_norm import SyncBatchNormalization
from corro.tensorflow.util import _executing_eagerly as _executing_eagerly
from corro.tensorflow.util import refs_to_vars, vars_to_refs

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "LocalGradientAggregationHelperEager",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather_object",
    "allreduce",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "elastic_enabled",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
    "refs_to_vars",
    "vars_to_refs",
]
__all__ += mpi_ops.__all__

del _gradients
