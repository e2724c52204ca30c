"""Which samples of an epoch are left, in which order: the same on every rank."""

from __future__ import annotations

import random


class Remaining:
    """The indices of a dataset, shuffled by `seed` if asked for, without the first `processed`."""

    def __init__(self, length: int, shuffle: bool, seed: int, processed: int) -> None:
        indices = list(range(length))
        if shuffle:
            random.Random(seed).shuffle(indices)
        self.indices = indices[processed:]

    def samples_each(self, ranks: int) -> int:
        """How many samples each rank gets; the last ones are filled up by repeating."""
        return -(-len(self.indices) // ranks)
