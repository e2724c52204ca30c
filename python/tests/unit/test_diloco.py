"""When fragments have their turns, and what they are made of."""

import itertools

from corro._front.local.diloco import cut, turn


def test_every_fragment_has_one_turn_a_round_and_all_are_spread_evenly():
    assert [step for step in range(1, 101) if turn(step, 50, 4) is not None] == [12, 25, 37, 50, 62, 75, 87, 100]
    for every in range(1, 40):
        for fragments in range(1, every + 1):
            turns = [(step, turn(step, every, fragments)) for step in range(1, 2 * every + 1)]
            turns = [(step, number) for step, number in turns if number is not None]
            assert [number for _, number in turns] == 2 * list(range(fragments))
            gaps = [after - before for (before, _), (after, _) in itertools.pairwise(turns)]
            assert all(every // fragments <= gap <= -(-every // fragments) for gap in gaps), (every, fragments)


def test_fragments_are_neighbours_of_about_one_size():
    assert cut([1, 1, 1, 1], 2) == [range(2), range(2, 4)]
    assert cut([100, 1, 1], 3) == [range(1), range(1, 2), range(2, 3)]
    assert cut([10, 10, 40, 10, 10], 3) == [range(2), range(2, 3), range(3, 5)]
