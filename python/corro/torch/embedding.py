"""Tables of embeddings that are sharded over the ranks: each has a part of them, and looks up what others have.

A lookup sends the row numbers that a rank needs, each once, to the ranks that have them (one alltoall of numbers), and gets
their rows back (one of vectors). The backward pass sends gradients the same way, where the rows' owner adds them in the
order of ranks, averages, and updates each row once. No gradient of a whole table ever exists.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from corro._front import basics
from corro._front.arguments import set_size
from corro._front.process_sets import ProcessSet, global_process_set
from corro.torch import sparse
from corro.torch._rows import distinct, sum_rows, take_rows
from corro.torch._shards import Block, Dealt, HotRows, Shards, shards_of
from corro.torch.mpi_ops import alltoall_async, barrier, synchronize

# Row numbers times a factor below the number of rows must fit 64 bits.
_MOST_ROWS = 1 << 31


@dataclass
class _Known:
    """Of a lookup's row numbers how often each is wanted; which ones others are asked for; and which ones are cached, at
    which places."""

    times: torch.Tensor
    asked: torch.Tensor
    cached: torch.Tensor
    places: torch.Tensor


@dataclass
class _Wanted:
    """A lookup: what is wanted, and the exchange of row numbers that is under way for it."""

    flat: torch.Tensor
    # Row numbers, each once (in each micro-batch); and which of the rows that come each of `flat` is.
    unique: torch.Tensor
    inverse: torch.Tensor
    # What the cache says of them, where there is one.
    known: _Known | None
    dealt: Dealt
    numbers: int


class ShardedEmbedding(torch.nn.Module):
    """As `torch.nn.Embedding`, of which each rank has a part, and which updates itself in the backward pass.

    `shard` says how it is cut: by "row" (dealt so that neighbours are on different ranks: popular ones are often
    neighbours), by "column", not at all ("table": one rank has it), or "auto", by its size. `optimizer` is one of
    `hvd.sparse`; the gradient of a row is averaged over ranks, as `DistributedOptimizer` does with all others (with
    `average=False` it is summed). `init` fills a tensor (what this rank has of the table); by default it is N(0, 1), the
    same table for any number of ranks. `pooling` sums or averages over the last dimension of the ids. The table is in
    neither `parameters()` nor `state_dict()`, so that `DistributedOptimizer` and `broadcast_parameters` leave it alone:
    `save` and `load` are its own, for any number of ranks, and any way of cutting. The table may be on the host or, after
    `.to("cuda")`, on a GPU; ids may be on either, and vectors come to where the ids are.

    With `cache_rows` a rank keeps so many of the rows that it needs most, and uses each for up to `cache_steps`
    lookups before it asks for it again: fewer bytes, for values that are a few steps old. With `micro_batches`, the
    first dimension of the ids is so many micro-batches, whose gradients are added one after the other: the same
    micro-batches give the same bits on any number of ranks, if they are summed. `prefetch` lets the numbers of the
    next batch travel early.

    Every rank must call it equally often, forward and backward, if only with no ids. If it is called twice before the
    backward pass, rows are updated twice.

    Example:
        >>> emb = hvd.ShardedEmbedding(1000, 8, optimizer=hvd.sparse.Adagrad(lr=0.1), name="items")
        >>> vectors = emb(torch.tensor([[3, 999], [3, 0]]))
        >>> vectors.shape
        torch.Size([2, 2, 8])
        >>> vectors.square().mean().backward()  # the three rows are updated
    """

    weight: torch.Tensor

    def __init__(
        self,
        rows: int,
        dim: int,
        *,
        shard: Literal["row", "column", "table", "auto"] = "row",
        pooling: Literal["sum", "mean"] | None = None,
        optimizer: sparse.RowOptimizer | None = None,
        average: bool = True,
        cache_rows: int = 0,
        cache_steps: int = 4,
        micro_batches: int = 1,
        init: Callable[[torch.Tensor], Any] | None = None,
        dtype: torch.dtype = torch.float32,
        name: str = "embedding",
        seed: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        if not 0 < rows <= _MOST_ROWS or dim <= 0:
            raise ValueError(f"a table of {rows} rows of {dim}: there can be 1 to {_MOST_ROWS} rows.")
        if pooling not in (None, "sum", "mean"):
            raise ValueError(f'pooling is "sum", "mean" or None, not {pooling!r}.')
        if micro_batches < 1:
            raise ValueError(
                "micro_batches must be 1 or more: into how many parts the first dimension of the ids is cut."
            )
        self.rows, self.dim, self.pooling, self.name = rows, dim, pooling, name
        self.optimizer = optimizer or sparse.SGD()
        self.process_set, self.average, self.micro_batches = process_set, average, micro_batches
        self.steps = 0
        self._ranks = set_size(process_set)
        me = process_set.rank()
        if me is None:
            raise ValueError(f"rank {basics.rank()} is not in the process set of table {name!r}.")
        self._me = me
        self._factor = _factor(rows)
        self._shards: Shards
        self.shard, self._shards = shards_of(shard, rows, dim, self._ranks, me, name)
        block = self._shards.block
        if self.shard == "column" and getattr(self.optimizer, "rowwise", False):
            raise ValueError(
                "rowwise=True needs whole rows, but ranks have parts of them here: shard by rows, or say rowwise=False."
            )
        weight = torch.empty(block.count, block.right - block.left, dtype=dtype)
        if init is None:
            _normal(weight, block, dim, seed)
        else:
            init(weight)
        self.register_buffer("weight", weight, persistent=False)
        self.slots = self.optimizer.slots(*weight.shape)
        self.hot = HotRows(cache_rows, cache_steps, dim, dtype) if cache_rows else None
        self._lookups = 0
        self._next: _Wanted | None = None

    @property
    def _caches(self) -> bool:
        """Micro-batches need every row as it is."""
        return self.hot is not None and self.micro_batches == 1

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> ShardedEmbedding:
        """What `to`, `cuda` and their like come down to: what the optimizer remembers goes along."""
        super()._apply(fn, recurse)
        self.slots = {key: fn(slot) for key, slot in self.slots.items()}
        if self.hot is not None:
            self.hot.move(self.weight.device)
        return self

    def extra_repr(self) -> str:
        return (
            f"{self.rows}, {self.dim}, shard={self.shard!r}, here={tuple(self.weight.shape)}, pooling={self.pooling}, "
            f"name={self.name!r}"
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of `ids`, of any shape."""
        vectors = self.lookup(self._flat(ids)).to(ids.device).view(*ids.shape, self.dim)
        if self.pooling is None:
            return vectors
        return vectors.sum(-2) if self.pooling == "sum" else vectors.mean(-2)

    def _flat(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"ids of table {self.name!r} must be int64 or int32, not {ids.dtype}.")
        flat = ids.reshape(-1).to(self.weight.device, torch.int64)
        if flat.numel():
            least, most = torch.aminmax(flat)
            if least < 0 or most >= self.rows:
                wrong = int(least if least < 0 else most)
                raise ValueError(_outside(wrong, self.name, self.rows))
        return flat

    def prefetch(self, ids: torch.Tensor) -> None:
        """Sends the row numbers of the next batch, and does not wait.

        The next `forward` must have the same ids. All ranks must call this. The rows themselves travel in `forward`, when
        they are up to date.

        Example:
            >>> emb = hvd.ShardedEmbedding(1000, 8, name="prefetched")
            >>> batches = [torch.tensor([1, 2]), torch.tensor([2, 3])]
            >>> emb.prefetch(batches[0])
            >>> for at, batch in enumerate(batches):
            ...     vectors = emb(batch)
            ...     if at + 1 < len(batches):
            ...         emb.prefetch(batches[at + 1])
            ...     vectors.sum().backward()
        """
        self.prefetch_flat(self._flat(ids))

    def prefetch_flat(self, flat: torch.Tensor) -> None:
        """The same for a list of ids that were checked."""
        if self._next is not None:
            raise ValueError(
                f"ids of table {self.name!r} were prefetched already: look them up before the next prefetch."
            )
        self._next = self._want(flat)

    def _want(self, flat: torch.Tensor) -> _Wanted:
        keys = flat
        if self.micro_batches > 1:
            if flat.numel() % self.micro_batches:
                raise ValueError(f"{flat.numel()} ids can't be {self.micro_batches} micro-batches of equal size.")
            batch = torch.arange(self.micro_batches, device=flat.device).repeat_interleave(
                flat.numel() // self.micro_batches
            )
            keys = batch * self.rows + flat
        self._lookups += 1
        if self.hot is not None and self._caches:
            unique, inverse, times = torch.unique(keys, return_inverse=True, return_counts=True)
            cached = self.hot.look(unique, self._lookups)
            missing = torch.ones_like(unique, dtype=torch.bool)
            missing[cached[0]] = False
            known = _Known(times, missing.nonzero()[:, 0], *cached)
            # Only for these rows are others asked. Gradients go to the owners of all: `give` sends all numbers.
            dealt = self._shards.deal((unique * self._factor % self.rows)[known.asked])
        else:
            known = None
            unique, inverse = distinct(keys)
            if self.micro_batches > 1:
                unique = unique % self.rows
            dealt = self._shards.deal(unique * self._factor % self.rows)
            if dealt.moved is not None:
                # Rows stay in the order in which they come: numbers are quicker to sort than rows.
                inverse = dealt.moved[inverse]
        name = f"embedding.{self.name}.ids"
        numbers = alltoall_async(dealt.sent, dealt.counts, name, self.process_set)
        return _Wanted(flat, unique, inverse, known, dealt, numbers)

    def lookup(self, flat: torch.Tensor) -> torch.Tensor:
        """The rows of a list of ids that were checked."""
        wanted, self._next = self._next, None
        if wanted is None:
            wanted = self._want(flat)
        elif not torch.equal(wanted.flat, flat):
            raise ValueError(
                f"the ids of table {self.name!r} that are looked up now are not those that were prefetched."
            )
        # A function of autograd works backward only if something that goes in needs a gradient.
        trigger = torch.ones((), requires_grad=torch.is_grad_enabled())
        rows: torch.Tensor = _Lookup.apply(trigger, wanted, self)
        return _Spread.apply(rows, wanted.inverse)

    def fetch(self, wanted: _Wanted) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The rows that are wanted; and, for the way back, which rows others have asked for, and how many each."""
        here, asked = synchronize(wanted.numbers)
        name = f"embedding.{self.name}.rows"
        theirs = take_rows(self.weight, here)
        came = self._shards.fetch(wanted.dealt, theirs, asked, name, self.process_set)
        known = wanted.known
        if self.hot is None or known is None:
            return came, here, asked
        rows = came.new_empty(len(wanted.unique), self.dim)
        rows[wanted.dealt.sorted(known.asked)] = came
        rows[known.cached] = self.hot.rows(known.places)
        self.hot.learn(wanted.unique, known.times, rows, known.asked, self._lookups)
        return rows, here, asked

    def give(self, wanted: _Wanted, grad: torch.Tensor, here: torch.Tensor, asked: torch.Tensor) -> None:
        """Sends gradients to the owners of rows, and updates the rows of this rank."""
        dealt, name = wanted.dealt, f"embedding.{self.name}.gradients"
        if wanted.known is not None:
            # Owners do not know yet of rows that were cached.
            dealt = self._shards.deal(wanted.unique * self._factor % self.rows)
            grad = dealt.sorted(grad)
            here, asked = synchronize(alltoall_async(dealt.sent, dealt.counts, f"{name}.ids", self.process_set))
        self.update(here, self._shards.give(dealt, grad, asked, name, self.process_set))

    def update(self, here: torch.Tensor, grad: torch.Tensor) -> None:
        """Updates rows of this rank by gradients that came in the order of ranks; each row once."""
        rows, where = distinct(here)
        # One after the other, in the order of ranks: the same bits on every run.
        total = sum_rows(grad, where, len(rows))
        self.steps += 1
        if self.average:
            total /= self._ranks
        self.optimizer.update(self.weight, self.slots, rows, total, self.steps)

    @torch.no_grad()
    def full_weight(self) -> torch.Tensor:
        """The whole table, on every rank that asks: all must."""
        cache, self.hot, batches, self.micro_batches = self.hot, None, self.micro_batches, 1
        try:
            device, starts = self.weight.device, range(0, self.rows, _PIECE)
            pieces = [torch.arange(at, min(at + _PIECE, self.rows), device=device) for at in starts]
            return torch.cat([self.lookup(piece) for piece in pieces])
        finally:
            self.hot, self.micro_batches = cache, batches

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes what this rank has of the table, and what the optimizer remembers of it. All ranks must call it, with
        a folder that all can read.

        Example:
            >>> emb = hvd.ShardedEmbedding(10, 2)
            >>> emb.save(hvd.broadcast_object(tempfile.mkdtemp()))
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        told = {"rows": self.rows, "dim": self.dim, "ranks": self._ranks, "steps": self.steps, "factor": self._factor}
        state = {"weight": self.weight.cpu(), **{f"slot.{key}": slot.cpu() for key, slot in self.slots.items()}}
        saved = {"told": told, "block": asdict(self._shards.block), "state": state}
        torch.save(saved, path / f"{self.name}.{self._me}.pt")
        barrier(process_set=self.process_set)

    @torch.no_grad()
    def load(self, folder: str | os.PathLike[str]) -> None:
        """Takes what `save` has written, on any number of ranks, and cut in any way.

        Example:
            >>> emb = hvd.ShardedEmbedding(10, 2)
            >>> folder = hvd.broadcast_object(tempfile.mkdtemp())
            >>> emb.save(folder)
            >>> emb.load(folder)
        """
        mine = self._shards.block
        places = mine.places()
        first = self._read(Path(folder), 0)
        for at in range(first["told"]["ranks"]):
            saved = first if at == 0 else self._read(Path(folder), at)
            block = Block(**saved["block"])
            wanted, there = block.find(places)
            left, right = max(mine.left, block.left), min(mine.right, block.right)
            if left >= right:
                continue
            to, source = slice(left - mine.left, right - mine.left), slice(left - block.left, right - block.left)
            device = self.weight.device
            self.weight[wanted, to] = saved["state"]["weight"][there, source].to(device)
            for key, slot in self.slots.items():
                if f"slot.{key}" not in saved["state"]:
                    raise ValueError(f"table {self.name!r} was saved with another optimizer: it has no {key!r}.")
                theirs = saved["state"][f"slot.{key}"]
                if _by_row(slot, mine) != _by_row(theirs, block):
                    raise ValueError(
                        f"table {self.name!r} was saved with another optimizer: its {key!r} has another shape."
                    )
                if _by_row(slot, mine):
                    slot[wanted] = theirs[there].to(device)
                else:
                    slot[wanted, to] = theirs[there, source].to(device)
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


def _by_row(slot: torch.Tensor, block: Block) -> bool:
    """Whether the optimizer remembers one number for a row, and not one for each of the block's columns."""
    return slot.shape[1] < block.right - block.left


# Rows of a whole table that travel at once.
_PIECE = 1 << 15
# And that are filled at once.
_NEW_ROWS = 1 << 8


class _Lookup(torch.autograd.Function):
    """Rows of all ranks: forward they travel to who asks, backward their gradients to who has them."""

    @staticmethod
    def forward(ctx: Any, _trigger: torch.Tensor, wanted: _Wanted, table: ShardedEmbedding) -> torch.Tensor:
        rows, here, asked = table.fetch(wanted)
        ctx.table, ctx.wanted, ctx.here, ctx.asked = table, wanted, here, asked
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, None]:
        ctx.table.give(ctx.wanted, grads[0], ctx.here, ctx.asked)
        return None, None, None


class _Spread(torch.autograd.Function):
    """Rows to where they are wanted, and the sums of their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        ctx.where, ctx.count = where, len(rows)
        return take_rows(rows, where)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grads[0]
        return sum_rows(grad, ctx.where, ctx.count), None


class ShardedEmbeddingBag(torch.nn.Module):
    """Several sharded tables that are looked up together: one exchange for all of the same width.

    `tables` gives rows and width by name; they are cut by rows. `cache_rows` and `prefetch` are as in
    `ShardedEmbedding`. Called with ids of shape (batch, ids of a sample) by name, it gives a vector for each sample
    by name: the sum or the mean of its rows.

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
        cache_rows: int = 0,
        cache_steps: int = 4,
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
        options |= {"cache_rows": cache_rows, "cache_steps": cache_steps}
        self.by_width = torch.nn.ModuleDict(
            {str(dim): ShardedEmbedding(rows, dim, name=f"{name}.{dim}", **options) for dim, rows in widths.items()}
        )

    def _flat(self, ids: Mapping[str, torch.Tensor]) -> dict[str, tuple[list[str], torch.Tensor]]:
        """By width, which tables have it, and the ids of all of them in a row."""
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
        found = {}
        for width in self.by_width:
            names = [table for table in self.tables if self.tables[table][1] == int(width)]
            to: Any = self.by_width[width].weight.device
            flat = torch.cat([ids[table].reshape(-1).to(to, torch.int64) + self.offsets[table] for table in names])
            found[width] = (names, flat)
        return found

    def prefetch(self, ids: Mapping[str, torch.Tensor]) -> None:
        """As `ShardedEmbedding.prefetch`."""
        for width, (_, flat) in self._flat(ids).items():
            self.by_width[width].prefetch_flat(flat)  # type: ignore[operator]

    def forward(self, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A vector for each sample, by table."""
        found: dict[str, torch.Tensor] = {}
        for width, (names, flat) in self._flat(ids).items():
            vectors = self.by_width[width].lookup(flat).split([ids[table].numel() for table in names])  # type: ignore[operator]
            for table, part in zip(names, vectors, strict=True):
                rows_of = part.to(ids[table].device).view(*ids[table].shape, int(width))
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


def _normal(weight: torch.Tensor, block: Block, dim: int, seed: int) -> None:
    """N(0, 1), the same number for the same place and column of the table, however it is cut."""
    places = block.places()
    columns = torch.arange(2 * block.left, 2 * block.right)
    # In pieces that are small beside the table.
    for start in range(0, len(places), _NEW_ROWS):
        piece = places[start : start + _NEW_ROWS]
        # A counter-based generator (splitmix64) keyed by place and column, then Box and Muller's formula.
        bits = _mixed(piece[:, None] * (2 * dim) + columns + (seed << 40))
        unit = ((bits >> 11) & ((1 << 53) - 1)).double().add_(0.5).mul_(2.0**-53)
        radius, angle = unit[:, ::2], unit[:, 1::2]
        weight[start : start + _NEW_ROWS] = (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()


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
