"""Tables of embeddings that are sharded over the ranks: each has some of the rows, and looks up what others have.

A lookup sends the row numbers that a rank needs, each once, to the ranks that have them (one alltoall of numbers), and gets
their rows back (one of vectors). The backward pass sends gradients the same way, where the rows' owner adds them in the
order of ranks, averages, and updates each row once. No gradient of a whole table ever exists.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from corro._front import basics
from corro._front.arguments import set_size
from corro._front.process_sets import ProcessSet, global_process_set
from corro.torch import sparse
from corro.torch.mpi_ops import alltoall, barrier

# Row numbers times a factor below the number of rows must fit 64 bits.
_MOST_ROWS = 1 << 31


class ShardedEmbedding(torch.nn.Module):
    """As `torch.nn.Embedding`, of which each rank has 1/n of the rows, and which updates itself in the backward pass.

    Rows are dealt so that neighbours are on different ranks: popular ones are often neighbours. `optimizer` is one of
    `hvd.sparse`; the gradient of a row is averaged over ranks, as `DistributedOptimizer` does with all others. `init` fills
    a tensor (the rows of this rank, in a fixed order whatever the number of ranks is); by default N(0, 1). `pooling` sums or
    averages over the last dimension of the ids. The table is in neither `parameters()` nor `state_dict()`, so that
    `DistributedOptimizer` and `broadcast_parameters` leave it alone: `save` and `load` are its own, for any number of ranks.

    Every rank must call it equally often, forward and backward, if only with no ids. If it is called twice before the
    backward pass, rows are updated twice.

    Example:
        >>> emb = hvd.ShardedEmbedding(1000, 8, optimizer=hvd.sparse.Adagrad(lr=0.1), name="items")
        >>> vectors = emb(torch.tensor([[3, 999], [3, 0]]))
        >>> vectors.shape
        torch.Size([2, 2, 8])
        >>> vectors.square().mean().backward()  # the four rows are updated
    """

    weight: torch.Tensor

    def __init__(
        self,
        rows: int,
        dim: int,
        *,
        shard: Literal["row"] = "row",
        pooling: Literal["sum", "mean"] | None = None,
        optimizer: sparse.RowOptimizer | None = None,
        init: Callable[[torch.Tensor], Any] | None = None,
        dtype: torch.dtype = torch.float32,
        name: str = "embedding",
        seed: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        if not 0 < rows <= _MOST_ROWS or dim <= 0:
            raise ValueError(f"a table of {rows} rows of {dim}: there can be 1 to {_MOST_ROWS} rows.")
        if shard != "row":
            raise ValueError(f'shard={shard!r} is not there yet: tables are sharded by rows, shard="row".')
        if pooling not in (None, "sum", "mean"):
            raise ValueError(f'pooling is "sum", "mean" or None, not {pooling!r}.')
        self.rows, self.dim, self.pooling, self.name = rows, dim, pooling, name
        self.optimizer = optimizer or sparse.SGD()
        self.process_set = process_set
        self.steps = 0
        self._ranks = set_size(process_set)
        me = process_set.rank()
        if me is None:
            raise ValueError(f"rank {basics.rank()} is not in the process set of table {name!r}.")
        self._me = me
        self._factor = _factor(rows)
        mine = len(range(self._me, rows, self._ranks))
        weight = torch.empty(mine, dim, dtype=dtype)
        if init is None:
            _normal(weight, self._places(), seed)
        else:
            init(weight)
        self.register_buffer("weight", weight, persistent=False)
        self.slots = self.optimizer.slots(mine, dim)

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.dim}, rows_here={len(self.weight)}, pooling={self.pooling}, name={self.name!r}"

    def _places(self) -> torch.Tensor:
        """Where the rows of this rank are in the table as it is dealt."""
        return torch.arange(self._me, self.rows, self._ranks)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of `ids`, of any shape."""
        if ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"ids of table {self.name!r} must be int64 or int32, not {ids.dtype}.")
        flat = ids.reshape(-1).long()
        if flat.numel():
            least, most = torch.aminmax(flat)
            if least < 0 or most >= self.rows:
                wrong = int(least if least < 0 else most)
                raise ValueError(_outside(wrong, self.name, self.rows))
        vectors = self.lookup(flat).view(*ids.shape, self.dim)
        if self.pooling is None:
            return vectors
        return vectors.sum(-2) if self.pooling == "sum" else vectors.mean(-2)

    def lookup(self, flat: torch.Tensor) -> torch.Tensor:
        """The rows of a list of ids that were checked."""
        unique, inverse = torch.unique(flat, return_inverse=True)
        # A function of autograd works backward only if something that goes in needs a gradient.
        trigger = torch.ones((), requires_grad=torch.is_grad_enabled())
        rows: torch.Tensor = _Lookup.apply(trigger, unique, self)
        return rows[inverse]

    def deal(self, unique: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For row numbers: in which order they go to ranks, how many to each, and where they are there."""
        places = unique * self._factor % self.rows
        owner = places % self._ranks
        order = torch.argsort(owner, stable=True)
        counts = torch.bincount(owner, minlength=self._ranks).int()
        return order, counts, torch.div(places, self._ranks, rounding_mode="floor")[order]

    def update(self, here: torch.Tensor, grad: torch.Tensor) -> None:
        """Updates rows of this rank by gradients that came in the order of ranks; each row once."""
        order = torch.argsort(here, stable=True)
        rows, where = torch.unique_consecutive(here[order], return_inverse=True)
        # One after the other, in the order of ranks: the same bits on every run.
        total = torch.zeros(len(rows), self.dim, dtype=grad.dtype).index_add_(0, where, grad[order])
        self.steps += 1
        self.optimizer.update(self.weight, self.slots, rows, total / self._ranks, self.steps)

    @torch.no_grad()
    def full_weight(self) -> torch.Tensor:
        """The whole table, on every rank that asks: all must."""
        pieces = [torch.arange(at, min(at + _PIECE, self.rows)) for at in range(0, self.rows, _PIECE)]
        return torch.cat([self.lookup(piece) for piece in pieces])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes this rank's rows and what the optimizer remembers of them. All ranks must, to a folder that all can read.

        Example:
            >>> emb = hvd.ShardedEmbedding(10, 2)
            >>> emb.save(hvd.broadcast_object(tempfile.mkdtemp()))
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        told = {"rows": self.rows, "dim": self.dim, "ranks": self._ranks, "steps": self.steps, "factor": self._factor}
        state = {"weight": self.weight, **{f"slot.{key}": slot for key, slot in self.slots.items()}}
        torch.save({"told": told, "state": state}, path / f"{self.name}.{self._me}.pt")
        barrier(process_set=self.process_set)

    @torch.no_grad()
    def load(self, folder: str | os.PathLike[str]) -> None:
        """Takes what `save` has written, on any number of ranks.

        Example:
            >>> emb = hvd.ShardedEmbedding(10, 2)
            >>> folder = hvd.broadcast_object(tempfile.mkdtemp())
            >>> emb.save(folder)
            >>> emb.load(folder)
        """
        places = self._places()
        first = self._read(Path(folder), 0)
        ranks = first["told"]["ranks"]
        for at in range(ranks):
            saved = first if at == 0 else self._read(Path(folder), at)
            wanted = (places % ranks == at).nonzero()[:, 0]
            there = torch.div(places[wanted], ranks, rounding_mode="floor")
            self.weight[wanted] = saved["state"]["weight"][there]
            for key, slot in self.slots.items():
                if f"slot.{key}" not in saved["state"]:
                    raise ValueError(f"table {self.name!r} was saved with another optimizer: it has no {key!r}.")
                slot[wanted] = saved["state"][f"slot.{key}"][there]
        self.steps = first["told"]["steps"]
        barrier(process_set=self.process_set)

    def _read(self, folder: Path, rank: int) -> dict[str, Any]:
        saved: dict[str, Any] = torch.load(folder / f"{self.name}.{rank}.pt", weights_only=True)
        told = saved["told"]
        if (told["rows"], told["dim"], told["factor"]) != (self.rows, self.dim, self._factor):
            raise ValueError(
                f"table {self.name!r} was saved with {told['rows']} rows of {told['dim']}; it has {self.rows} of {self.dim}."
            )
        return saved


# Rows of a whole table that travel at once.
_PIECE = 1 << 18


class _Lookup(torch.autograd.Function):
    """Rows of all ranks: forward they travel to who asks, backward their gradients to who has them."""

    @staticmethod
    def forward(ctx: Any, _trigger: torch.Tensor, unique: torch.Tensor, table: ShardedEmbedding) -> torch.Tensor:
        order, counts, places = table.deal(unique)
        name = f"embedding.{table.name}"
        here, asked = alltoall(places, counts, f"{name}.ids", table.process_set)
        rows, _ = alltoall(table.weight[here], asked, f"{name}.rows", table.process_set)
        ctx.table, ctx.order, ctx.counts, ctx.here = table, order, counts, here
        result = torch.empty_like(rows)
        result[order] = rows
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, None]:
        table = ctx.table
        (grad,) = grads
        name = f"embedding.{table.name}.gradients"
        came, _ = alltoall(grad[ctx.order].contiguous(), ctx.counts, name, table.process_set)
        table.update(ctx.here, came)
        return None, None, None


class ShardedEmbeddingBag(torch.nn.Module):
    """Several sharded tables that are looked up together: one exchange for all of the same width.

    `tables` gives rows and width by name. Called with ids of shape (batch, ids of a sample) by name, it gives a vector for
    each sample by name: the sum or the mean of its rows.

    Example:
        >>> bag = hvd.ShardedEmbeddingBag({"user": (1000, 8), "item": (500, 8)}, optimizer=hvd.sparse.SGD(lr=0.1))
        >>> vectors = bag({"user": torch.tensor([[1], [2]]), "item": torch.tensor([[3, 4], [5, 5]])})
        >>> vectors["item"].shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        tables: Mapping[str, tuple[int, int]],
        *,
        pooling: Literal["sum", "mean"] = "sum",
        optimizer: sparse.RowOptimizer | None = None,
        init: Callable[[torch.Tensor], Any] | None = None,
        name: str = "bag",
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        if pooling not in ("sum", "mean"):
            raise ValueError(f'pooling is "sum" or "mean", not {pooling!r}.')
        self.tables, self.pooling = dict(tables), pooling
        # Tables of one width lie behind each other in one.
        self.offsets: dict[str, int] = {}
        widths: dict[int, int] = {}
        for table, (rows, dim) in self.tables.items():
            self.offsets[table] = widths.get(dim, 0)
            widths[dim] = widths.get(dim, 0) + rows
        options: dict[str, Any] = {"optimizer": optimizer, "init": init, "process_set": process_set}
        self.by_width = torch.nn.ModuleDict(
            {str(dim): ShardedEmbedding(rows, dim, name=f"{name}.{dim}", **options) for dim, rows in widths.items()}
        )

    def forward(self, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A vector for each sample, by table."""
        if ids.keys() != self.tables.keys():
            raise ValueError(f"ids are for {sorted(ids)}, and there are the tables {sorted(self.tables)}.")
        for table, numbers in ids.items():
            rows = self.tables[table][0]
            if numbers.dim() != 2:
                raise ValueError(
                    f"ids of table {table!r} have the shape {tuple(numbers.shape)}: give (batch, ids of a sample)."
                )
            if numbers.numel() and (int(numbers.min()) < 0 or int(numbers.max()) >= rows):
                wrong = int(numbers.min()) if int(numbers.min()) < 0 else int(numbers.max())
                raise ValueError(_outside(wrong, table, rows))
        found: dict[str, torch.Tensor] = {}
        for width, embedding in self.by_width.items():
            names = [table for table in self.tables if self.tables[table][1] == int(width)]
            flat = torch.cat([ids[table].reshape(-1).long() + self.offsets[table] for table in names])
            vectors = embedding.lookup(flat).split([ids[table].numel() for table in names])  # type: ignore[operator]
            for table, part in zip(names, vectors, strict=True):
                rows_of = part.view(*ids[table].shape, int(width))
                found[table] = rows_of.sum(1) if self.pooling == "sum" else rows_of.mean(1)
        return {table: found[table] for table in self.tables}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """As `ShardedEmbedding.save`."""
        for embedding in self.by_width.values():
            embedding.save(folder)  # type: ignore[operator]

    def load(self, folder: str | os.PathLike[str]) -> None:
        """As `ShardedEmbedding.load`."""
        for embedding in self.by_width.values():
            embedding.load(folder)  # type: ignore[operator]


def _outside(number: int, table: str, rows: int) -> str:
    return f"id {number} on rank {basics.rank()} is not in table {table!r}, which has the rows 0 to {rows - 1}."


def _factor(rows: int) -> int:
    """A number by which row numbers are multiplied, modulo `rows`: each has its own place, and neighbours are far apart."""
    factor = max(1, int(rows * (math.sqrt(5) - 1) / 2))
    while math.gcd(factor, rows) != 1:
        factor += 1
    return factor % rows if rows > 1 else 1


def _normal(weight: torch.Tensor, places: torch.Tensor, seed: int) -> None:
    """N(0, 1), the same number for the same place of the table whatever the number of ranks is."""
    for start in range(0, len(places), _PIECE):
        piece = places[start : start + _PIECE]
        # A counter-based generator (splitmix64) keyed by place and column, then Box and Muller's formula.
        counter = piece[:, None] * (2 * weight.shape[1]) + torch.arange(2 * weight.shape[1]) + (seed << 40)
        bits = _mixed(counter)
        unit = ((bits >> 11) & ((1 << 53) - 1)).double().add_(0.5).mul_(2.0**-53)
        radius, angle = unit[:, ::2], unit[:, 1::2]
        weight[start : start + _PIECE] = (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()


def _mixed(counter: torch.Tensor) -> torch.Tensor:
    """splitmix64, in numbers that wrap; shifts of torch keep the sign, so it is masked off."""

    def shifted(z: torch.Tensor, by: int) -> torch.Tensor:
        return (z >> by) & ((1 << (64 - by)) - 1)

    z = counter * _signed(0x9E3779B97F4A7C15)
    z = (z ^ shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ shifted(z, 31)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
