"""A table of embeddings at the servers of a job, for fronts that have no table of their own: rows are read, gradients
of rows pushed.

In rounds: each step takes one push of every rank, adds each row's gradients in the order of ranks, averages, and
updates the row once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from corro import ps
from corro._front import basics
from corro._front.process_sets import ProcessSet
from corro.ps._training import Servers

Array = np.ndarray[Any, Any]


class TableAtServers:
    """See the module. `init` makes the first value, on the first rank only; by default it is N(0, 1) by `seed`."""

    def __init__(
        self,
        rows: int,
        dim: int,
        optimizer: ps.Optimizer | None,
        init: Callable[[tuple[int, int]], Any] | None,
        name: str,
        seed: int,
        process_set: ProcessSet,
        servers: Servers,
    ) -> None:
        if rows <= 0 or dim <= 0:
            raise ValueError(f"a table of {rows} rows of {dim}.")
        self.rows, self.dim, self.name = rows, dim, name
        self.store = ps.Store(process_set, ps.BSP(), servers)
        self.store.set_optimizer(optimizer or ps.SGD(lr=0.01))
        if process_set.rank() != 0:
            # Others only say its shape: this is memory that nobody touches.
            value = np.empty((rows, dim), np.float32)
        elif init is None:
            value = np.random.default_rng(seed).standard_normal((rows, dim), np.float32)
        else:
            value = np.asarray(init((rows, dim)), np.float32)
        self.store.init(name, value, rule="update", rows=True)

    def pull(self, ids: Array) -> Array:
        """The rows of ids of any shape; each travels once."""
        flat = np.asarray(ids).reshape(-1)
        if flat.size and (flat.min() < 0 or flat.max() >= self.rows):
            wrong = int(flat.min() if flat.min() < 0 else flat.max())
            raise ValueError(
                f"id {wrong} on rank {basics.rank()} is not in table {self.name!r}, which has the rows 0 to {self.rows - 1}."
            )
        unique, inverse = np.unique(flat, return_inverse=True)
        rows: Array = self.store.pull_rows(self.name, unique)
        return rows[inverse.reshape(-1)].reshape(*np.shape(ids), self.dim)

    def push(self, ids: Array, gradients: Array) -> None:
        """Gradients of the rows of ids; those of one row are added up before they travel."""
        flat = np.asarray(ids).reshape(-1)
        unique, inverse = np.unique(flat, return_inverse=True)
        total = np.zeros((len(unique), self.dim), np.float32)
        np.add.at(total, inverse.reshape(-1), np.asarray(gradients, np.float32).reshape(len(flat), self.dim))
        self.store.push_rows(self.name, unique, total)
