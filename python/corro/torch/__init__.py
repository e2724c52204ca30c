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
from corro._front.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from corro.torch import elastic
from corro.torch._shared import shared_empty
from corro.torch.compression import Compression
from corro.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from corro.torch.mpi_ops import *  # noqa: F403 - the operations; mpi_ops.__all__ lists them
from corro.torch.mpi_ops import __all__ as _operations
from corro.torch.optimizer import DistributedOptimizer
from corro.torch.sync_batch_norm import SyncBatchNorm


def _make_an_optimizer() -> None:
    """The first one imports much of torch, which takes seconds."""
    _torch.optim.SGD([_torch.nn.Parameter(_torch.zeros(1))], lr=0.1)


_before_waiting(_make_an_optimizer)

__all__ = [  # noqa: PLE0604 - `_operations` is a list of names
    *_operations,
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "SyncBatchNorm",
    "add_process_set",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "global_process_set",
    "remove_process_set",
    "shared_empty",
]
