"""Parameters, optimizer states and objects from one rank to all, and numbers that are reported."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from corro._front.arguments import Average
from corro._front.objects import allgather_object, broadcast_object
from corro._front.process_sets import ProcessSet, global_process_set
from corro.jax._trees import mapped
from corro.jax.mpi_ops import allreduce, broadcast

__all__ = [
    "allgather_object",
    "average_metrics",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]

Tree = TypeVar("Tree")


def broadcast_parameters(
    params: Tree, root_rank: int = 0, process_set: ProcessSet = global_process_set, name: str = "parameters"
) -> Tree:
    """The parameters of rank `root_rank`, on every rank, so that all start from the same weights.

    `params` is any pytree: Flax's variables or NNX's state, an Equinox model, Haiku's dictionaries. Leaves that are not
    arrays stay as they are. All arrays travel in one call.

    Example:
        >>> params = {"w": jnp.full((2,), hvd.rank()), "activation": jax.nn.relu}
        >>> hvd.broadcast_parameters(params, root_rank=1)["w"]
        Array([1, 1], dtype=int32)
    """

    def from_root(arrays: list[Any]) -> list[Any]:
        return broadcast(arrays, root_rank, name, process_set)

    return mapped(from_root, params)


def broadcast_optimizer_state(
    opt_state: Tree, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> Tree:
    """The optimizer state of rank `root_rank`, on every rank: what `optimizer.init(params)` gave, or a later one.

    Example:
        >>> import optax
        >>> opt_state = optax.adam(0.1).init({"w": jnp.full((2,), 1.0 + hvd.rank())})
        >>> opt_state = hvd.broadcast_optimizer_state(opt_state, root_rank=0)
    """
    return broadcast_parameters(opt_state, root_rank, process_set, "optimizer_state")


def average_metrics(metrics: Tree, name: str = "metrics", process_set: ProcessSet = global_process_set) -> Tree:
    """The mean of each number over all ranks: for losses and accuracies that one rank reports. Whole numbers become floats.

    Example:
        >>> hvd.average_metrics({"loss": 2.0 * hvd.rank(), "correct": 3})
        {'correct': Array(3., dtype=float32), 'loss': Array(1., dtype=float32)}
    """

    def as_float(number: Any) -> Any:
        array = jnp.asarray(number)
        return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(jnp.float32)

    return allreduce(jax.tree_util.tree_map(as_float, metrics), name=name, op=Average, process_set=process_set)
