"""Which rank reads which rows: pure, so many cases."""

from __future__ import annotations

import random

import pytest

from corro.spark.common._shares import Piece, batch_sizes, share, steps_per_epoch


@pytest.mark.parametrize("seed", range(40))
def test_every_row_once_and_equal_steps_on_any_number_of_ranks(seed: int) -> None:
    chance = random.Random(seed)
    pieces = [Piece(f"f{n // 3}", n % 3, chance.choice([0, 1, 2, 7, 100])) for n in range(chance.randrange(1, 20))]
    rows = sorted((piece.path, piece.group, row) for piece in pieces for row in range(piece.rows))
    for size in range(1, 6):
        for mixing in (None, seed):
            for epoch in range(2):
                shares = [share(pieces, rank, size, epoch, mixing) for rank in range(size)]
                read = [
                    (s.piece.path, s.piece.group, row) for one in shares for s in one for row in range(s.start, s.stop)
                ]
                assert sorted(read) == rows
                counts = [sum(s.stop - s.start for s in one) for one in shares]
                assert max(counts) - min(counts) <= 1
                if min(counts) == 0:
                    continue
                batch = chance.choice([1, 2, 3, 32])
                steps = steps_per_epoch(len(rows), size, batch)
                for count in counts:
                    sizes = batch_sizes(count, batch, steps)
                    assert (len(sizes), sum(sizes)) == (steps, count)
                    assert 1 <= min(sizes) <= max(sizes) <= max(batch, 2)


def test_epochs_have_orders_of_their_own_and_the_same_on_all_ranks() -> None:
    pieces = [Piece("f", n, 10) for n in range(50)]
    first, again, second = (share(pieces, 0, 1, epoch, 7) for epoch in (0, 0, 1))
    assert first == again != second
    assert [s.piece for s in share(pieces, 0, 1, 0, None)] == pieces


def test_fewer_rows_than_ranks_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="fewer rows than ranks"):
        batch_sizes(0, 32, 1)
    with pytest.raises(ValueError, match="rank 3 of 3"):
        share([], 3, 3, 0, None)
