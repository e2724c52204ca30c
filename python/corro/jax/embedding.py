"""Tables of embeddings that parameter servers have: rows are looked up, and updated where they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from corro import ps
from corro._front.process_sets import ProcessSet, global_process_set
from corro.ps._table import TableAtServers

__all__ = ["ShardedEmbedding"]


def look_up(table: TableAtServers, anchor: Any, ids: Any) -> Any:
    """The rows of `ids`. What comes back to them goes to the servers; `anchor` gets a gradient of 0.

    JAX works backward to what it differentiates by, and no table is there to be differentiated by. And a step that
    reads the anchor of the step before reads the rows after that one's gradients were pushed.
    """

    @jax.custom_vjp
    def rows(anchor: Any, ids: Any) -> Any:
        shape = jax.ShapeDtypeStruct((*jnp.shape(ids), table.dim), jnp.float32)
        # Reading twice, or not at all if nobody needs it, does no harm.
        return jax.pure_callback(lambda _, ids: table.pull(np.asarray(ids)), shape, anchor, ids)

    def forward(anchor: Any, ids: Any) -> tuple[Any, Any]:
        return rows(anchor, ids), ids

    def backward(ids: Any, gradients: Any) -> tuple[Any, Any]:
        def push(ids: Any, gradients: Any) -> Any:
            table.push(np.asarray(ids), np.asarray(gradients))
            return np.float32(0)

        done = io_callback(push, jax.ShapeDtypeStruct((), jnp.float32), ids, gradients, ordered=True)
        return done, np.zeros(jnp.shape(ids), jax.dtypes.float0)

    rows.defvjp(forward, backward)
    return rows(anchor, ids)


class ShardedEmbedding:
    """A table of embeddings of which every server of the job has a part: each rank's own, or those of `corro run --servers`.

    Calling it with `anchor` and ids gives their rows, also in compiled code. The anchor is a number that is trained with the
    other parameters and stays 0: `init_anchor()` makes it. Gradients of rows are averaged over ranks and applied by
    `optimizer`, one of `corro.ps`, as soon as the backward pass comes to them. A server that is lost loses no row: another
    has a copy.

    `init(shape)` gives the first value, on the first rank; by default it is N(0, 1). Every rank must look up and
    differentiate equally often.

    Example:
        >>> emb = hvd.ShardedEmbedding(1000, 8, optimizer=corro.ps.Adagrad(lr=0.1), name="items")
        >>> params = {"items": emb.init_anchor()}
        >>> def loss(params, ids):
        ...     return jnp.square(emb(params["items"], ids)).mean()
        >>> gradients = jax.grad(loss)(params, jnp.array([3, 999, 3]))  # two rows are updated
        >>> float(gradients["items"])
        0.0
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        *,
        optimizer: ps.Optimizer | None = None,
        init: Callable[[tuple[int, int]], Any] | None = None,
        name: str = "embedding",
        seed: int = 0,
        process_set: ProcessSet = global_process_set,
        servers: Any = None,
    ) -> None:
        self._table = TableAtServers(rows, dim, optimizer, init, name, seed, process_set, servers)

    def init_anchor(self) -> jax.Array:
        """What stands for the table among the parameters."""
        return jnp.zeros((), jnp.float32)

    def __call__(self, anchor: Any, ids: Any) -> Any:
        """The rows of `ids`, of any shape."""
        return look_up(self._table, anchor, ids)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the table and the optimizer's memory of it to a folder of the first rank's. All ranks must call it.

        Example:
            >>> emb = hvd.ShardedEmbedding(10, 2, name="kept")
            >>> folder = hvd.broadcast_object(tempfile.mkdtemp())
            >>> emb.save(folder)
            >>> emb.load(folder)
        """
        self._table.store.save(folder)

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Takes what `save` has written, with any number of ranks and servers."""
        self._table.store.load(folder)
