"""Which rank reads which rows in which epoch. Pure: no file is opened here.

The rows of a data set lie in pieces (row groups of Parquet files). For each epoch the pieces are put in an order, the same
on all ranks, and cut into equal shares of consecutive rows, one for each rank. So every row is read once in an epoch,
whatever the number of ranks, and shares differ by one row at most. A rank makes as many batches as any other, since all
must take the same number of steps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Piece", "Slice", "batch_sizes", "share", "steps_per_epoch"]


@dataclass(frozen=True)
class Piece:
    """A row group: the file, its number there, and how many rows it has."""

    path: str
    group: int
    rows: int


@dataclass(frozen=True)
class Slice:
    """Some consecutive rows of a piece."""

    piece: Piece
    start: int
    stop: int


def share(pieces: Sequence[Piece], rank: int, size: int, epoch: int, seed: int | None) -> list[Slice]:
    """The rows of a rank in an epoch, in the order in which they are read. Without a seed, pieces stay in their order."""
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size} ranks.")
    order = list(pieces)
    if seed is not None:
        random.Random(f"{seed}/{epoch}").shuffle(order)
    total = sum(piece.rows for piece in order)
    first, last = total * rank // size, total * (rank + 1) // size
    slices = []
    begin = 0
    for piece in order:
        start, stop = max(first - begin, 0), min(last - begin, piece.rows)
        if start < stop:
            slices.append(Slice(piece, start, stop))
        begin += piece.rows
    return slices


def steps_per_epoch(rows: int, size: int, batch_size: int) -> int:
    """How many batches it takes to see every row of the largest share."""
    if batch_size == 1:
        # A rank with a row less could not make as many batches as the others: theirs may have two rows.
        return max(1, rows // size)
    largest = -(-rows // size)
    return -(-largest // batch_size)


def batch_sizes(rows: int, batch_size: int, steps: int) -> list[int]:
    """`rows` rows in `steps` batches of at most `batch_size`: full ones first, none of them empty.

    Batches of one row may have two: see `steps_per_epoch`.
    """
    if batch_size == 1 and rows == steps + 1:
        return [2] + [1] * (steps - 1)
    if not steps <= rows <= steps * batch_size:
        raise ValueError(
            f"{rows} rows can't be cut into {steps} batches of 1 to {batch_size}: there are fewer rows than ranks. "
            "Give more rows, or a smaller num_proc."
        )
    sizes = []
    for left in range(steps, 0, -1):
        # What is left must suffice for one row in each batch that follows.
        take = min(batch_size, rows - (left - 1))
        sizes.append(take)
        rows -= take
    return sizes
