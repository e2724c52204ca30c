"""Which samples of an epoch are left, and who gets which: the same answer on every rank, without asking the others.

The samples of an epoch are in one order, which all ranks know, and the ranks take turns. So after each of their batches
what is done is the beginning of that order, whatever number of ranks did it: one number says what is left.
"""

from __future__ import annotations

import random
from collections.abc import Set


class Order:
    """The samples of an epoch in the order of `seed`. The last one is kept: a large dataset takes seconds to shuffle."""

    def __init__(self, length: int, shuffle: bool) -> None:
        self._length = length
        self._shuffle = shuffle
        self._last: tuple[int, list[int]] | None = None

    def left(self, seed: int, processed: int, marked: Set[int] = frozenset()) -> list[int]:
        """What is left when the first `processed` are done, and those that are marked."""
        left = self._all(seed)[processed:]
        return [index for index in left if index not in marked] if marked else left

    def _all(self, seed: int) -> list[int]:
        if self._last is None or self._last[0] != seed:
            indices = list(range(self._length))
            if self._shuffle:
                random.Random(seed).shuffle(indices)
            self._last = (seed, indices)
        return self._last[1]


def samples_each(left: int, ranks: int) -> int:
    """How many of so many samples each rank gets, if none may have fewer than another."""
    return -(-left // ranks)


def share(left: list[int], rank: int, ranks: int, pad: bool) -> list[int]:
    """What one of the ranks gets. If padded, all get equally many: the head is repeated, several times if need be."""
    if pad and left:
        missing = samples_each(len(left), ranks) * ranks - len(left)
        left = left + (left * -(-missing // len(left)))[:missing]
    return left[rank::ranks]
