"""How a table is cut, and how what ranks look up travels: by rows, by columns, or not at all ("table": one rank has
it whole).

A row's *place* is its number times a factor, modulo the rows: neighbours, which are often equally popular, are far
apart. What a rank has of a table is a `Block` of places and columns: enough to load a saved table with any other
number of ranks, or cut in another way.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from corro._front.process_sets import ProcessSet
from corro.torch._rows import deal
from corro.torch.mpi_ops import alltoall

# Tables that are shorter are not worth being cut by rows, and rows that are narrower not by columns.
_FEW_ROWS = 64
_FEW_COLUMNS = 16


@dataclass(frozen=True)
class Block:
    """The places `start`, `start + step`, ... (`count` of them), and of each the columns from `left` to before `right`."""

    start: int
    step: int
    count: int
    left: int
    right: int

    def places(self) -> torch.Tensor:
        return torch.arange(self.start, self.start + self.step * self.count, self.step)

    def find(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which of these places are in the block, and where there."""
        at = places - self.start
        inside = (at >= 0) & (at % self.step == 0) & (at < self.step * self.count)
        which = inside.nonzero()[:, 0]
        return which, torch.div(at[which], self.step, rounding_mode="floor")


@dataclass(frozen=True)
class Dealt:
    """Places on their way to those who have them: where each has gone in the order in which they go (None: where it was),
    and how many go to each."""

    moved: torch.Tensor | None
    counts: torch.Tensor
    sent: torch.Tensor

    def sorted(self, which: torch.Tensor) -> torch.Tensor:
        """What belongs to the places, in the order in which these go."""
        if self.moved is None:
            return which
        found = torch.empty_like(which)
        found[self.moved] = which
        return found


class Shards(Protocol):
    """How a table is cut."""

    block: Block

    def deal(self, places: torch.Tensor) -> Dealt:
        """Who is asked for what."""

    def fetch(self, dealt: Dealt, rows: torch.Tensor, asked: torch.Tensor, name: str, over: ProcessSet) -> torch.Tensor:
        """Sends `rows`, what others have asked for, and gives what was asked of them, in the order in which it was dealt."""

    def give(self, dealt: Dealt, grad: torch.Tensor, asked: torch.Tensor, name: str, over: ProcessSet) -> torch.Tensor:
        """Sends gradients of what was asked for, in the order in which it was dealt, and gives those of the rows that others
        have asked for, in the order of ranks."""


class Rows:
    """Place p is at rank p mod n; or, of a whole table, all are at one rank."""

    def __init__(self, rows: int, dim: int, ranks: int, me: int, owner: int | None = None) -> None:
        self._ranks, self._owner = ranks, owner
        if owner is None:
            self.block = Block(me, ranks, len(range(me, rows, ranks)), 0, dim)
        else:
            self.block = Block(0, 1, rows if me == owner else 0, 0, dim)

    def deal(self, places: torch.Tensor) -> Dealt:
        if self._owner is not None:
            counts = torch.zeros(self._ranks, dtype=torch.int32)
            counts[self._owner] = len(places)
            return Dealt(None, counts, places)
        sent, moved, counts = deal(places, self._ranks)
        return Dealt(moved, counts, sent)

    def fetch(self, dealt: Dealt, rows: torch.Tensor, asked: torch.Tensor, name: str, over: ProcessSet) -> torch.Tensor:
        return alltoall(rows, asked, name, over)[0]

    def give(self, dealt: Dealt, grad: torch.Tensor, asked: torch.Tensor, name: str, over: ProcessSet) -> torch.Tensor:
        return alltoall(grad, dealt.counts, name, over)[0]


class Columns:
    """Every rank has some columns of all rows, and is asked for each row by everyone who needs it."""

    def __init__(self, rows: int, dim: int, ranks: int, me: int) -> None:
        # The first ones have a column more if they can't be dealt evenly.
        edges = [dim * rank // ranks for rank in range(ranks + 1)]
        self._widths = torch.tensor([right - left for left, right in itertools.pairwise(edges)]).int()
        self.block = Block(0, 1, rows, edges[me], edges[me + 1])

    def deal(self, places: torch.Tensor) -> Dealt:
        ranks = len(self._widths)
        return Dealt(None, torch.full((ranks,), len(places), dtype=torch.int32), places.repeat(ranks))

    def fetch(self, dealt: Dealt, rows: torch.Tensor, asked: torch.Tensor, name: str, over: ProcessSet) -> torch.Tensor:
        # Ranks may have different widths: all travel as one list of numbers.
        came, _ = alltoall(rows.reshape(-1), asked * rows.shape[1], name, over)
        count = int(dealt.counts[0])
        parts = came.split((dealt.counts * self._widths).tolist())
        return torch.cat([part.view(count, int(w)) for part, w in zip(parts, self._widths, strict=True)], 1)

    def give(self, dealt: Dealt, grad: torch.Tensor, asked: torch.Tensor, name: str, over: ProcessSet) -> torch.Tensor:
        flat = torch.cat([part.reshape(-1) for part in grad.split(self._widths.tolist(), 1)])
        came, _ = alltoall(flat, dealt.counts * self._widths, name, over)
        return came.view(int(asked.sum()), self.block.right - self.block.left)


def shards_of(kind: str, rows: int, dim: int, ranks: int, me: int, name: str) -> tuple[str, Any]:
    """How a table is cut; "auto": by rows if it has enough, else by columns if these are enough, else not at all."""
    if kind == "auto":
        long, wide = rows >= _FEW_ROWS * ranks, dim >= _FEW_COLUMNS * ranks
        kind = "row" if long else "column" if wide else "table"
    if kind == "row":
        return kind, Rows(rows, dim, ranks, me)
    if kind == "column":
        if dim < ranks:
            raise ValueError(f"table {name!r} has {dim} columns, fewer than the {ranks} ranks: shard it by rows.")
        return kind, Columns(rows, dim, ranks, me)
    if kind == "table":
        # By its name: tables that are cut so spread over the ranks, and all agree on who has which.
        return kind, Rows(rows, dim, ranks, me, owner=zlib.crc32(name.encode()) % ranks)
    raise ValueError(f'shard is "row", "column", "table" or "auto", not {kind!r}.')


class HotRows:
    """Rows that this rank looks up most, as they were a few steps ago at most: those it need not ask for.

    Ranks know nothing of each other's. Gradients always go to the rows' owners.
    """

    def __init__(self, most: int, steps: int, dim: int, dtype: torch.dtype) -> None:
        if steps < 1:
            raise ValueError("cache_steps must be 1 or more: for how many steps a cached row may be used.")
        self._most, self._steps = most, steps
        self._ids = torch.empty(0, dtype=torch.int64)
        self._rows = torch.empty(0, dim, dtype=dtype)
        self._until = torch.empty(0, dtype=torch.int64)
        self._uses = torch.empty(0)
        self.hits = self.lookups = 0

    def move(self, device: torch.device) -> None:
        """To where the table is now."""
        self._ids, self._rows = self._ids.to(device), self._rows.to(device)
        self._until, self._uses = self._until.to(device), self._uses.to(device)

    def look(self, ids: torch.Tensor, now: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Which of the ids (sorted, each once) are here, and where."""
        at = torch.searchsorted(self._ids, ids).clamp_(max=max(0, len(self._ids) - 1))
        known = self._ids[at] == ids if len(self._ids) else torch.zeros_like(ids, dtype=torch.bool)
        fresh = known & (self._until[at] > now) if len(self._ids) else known
        which = fresh.nonzero()[:, 0]
        self.hits, self.lookups = self.hits + len(which), self.lookups + len(ids)
        return which, at[which]

    def rows(self, at: torch.Tensor) -> torch.Tensor:
        return self._rows[at]

    def learn(
        self, ids: torch.Tensor, times: torch.Tensor, rows: torch.Tensor, fetched: torch.Tensor, now: int
    ) -> None:
        """Takes note of a lookup: `ids` were needed so many `times`, and of those that were `fetched` the rows are new."""
        until = torch.full_like(ids, -1)
        until[fetched] = now + self._steps
        every = torch.cat([self._ids, ids])
        merged, where = torch.unique(every, return_inverse=True)
        old, new = where[: len(self._ids)], where[len(self._ids) :]
        # What was popular long ago counts less and less.
        uses = torch.zeros_like(merged, dtype=torch.float32)
        uses.index_add_(0, old, 0.9 * self._uses).index_add_(0, new, times.float())
        values = self._rows.new_empty(len(merged), self._rows.shape[1])
        ends = torch.zeros_like(merged)
        values[old], ends[old] = self._rows, self._until
        values[new[fetched]], ends[new[fetched]] = rows[fetched], until[fetched]
        keep = torch.topk(uses, min(self._most, len(uses))).indices.sort().values
        self._ids, self._rows, self._until, self._uses = merged[keep], values[keep], ends[keep], uses[keep]
