"""What the checks of training decide, without any rank."""

import pytest

from corro._front import checks
from corro._front.checks import MODEL, PARAMETER, RATE


def test_the_first_rounds_are_looked_at_closely_then_one_in_many():
    due = [n for n in range(1, 1300) if checks.is_due(n)]
    assert due == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280]


@pytest.mark.parametrize(("text", "level"), [("0", 0), ("off", 0), ("1", 1), ("2", 2), ("", 1), ("nonsense", 1)])
def test_levels(monkeypatch, text, level):
    monkeypatch.setenv("CORRO_CHECKS", text)
    assert checks.level() == level


def summed(numbers, factor=1.0):
    """What a reduction makes of the digests of several ranks."""
    rows = [checks.to_ride(number) for number in numbers]
    return [sum(column) * factor for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("others", [0, 1, 2, 500])
@pytest.mark.parametrize("pair", [(1, 2), (0xFFFFFFFF, 0xFFFFFFFE), (0x12345678, 0x92345678)])
def test_digests_that_ride_along_tell_whether_ranks_differ(pair, others):
    one, odd = pair
    for factor in (1.0, 1 / (others + 2), 0.1):
        assert not checks.disagree(summed([one] * (others + 2), factor))
        assert checks.disagree(summed([one] * (others + 1) + [odd], factor))
        assert checks.disagree(summed([odd] + [one] * (others + 1), factor))


def test_a_rank_that_has_joined_does_not_disagree():
    zeros = [0.0] * checks.RIDER
    assert not checks.disagree([a + b for a, b in zip(summed([7, 7]), zeros, strict=True)])
    assert checks.disagree([a + b for a, b in zip(summed([7, 8]), zeros, strict=True)])
    assert not checks.disagree(zeros)


def test_the_first_difference_names_ranks_fact_and_values():
    usual = {(MODEL, "w"): "float32 [2]", (PARAMETER, "w"): [0.5, 1.0], (RATE, "of group 0"): 0.1}
    assert checks.difference({0: usual, 1: usual, 2: usual}) is None
    odd = {**usual, (RATE, "of group 0"): 0.2}
    assert checks.difference({0: usual, 1: usual, 2: odd}) == (
        RATE,
        "the learning rate of group 0 is 0.2 on rank 2 but 0.1 on ranks 0, 1",
    )
    kind, text = checks.difference({0: usual, 3: {**usual, (PARAMETER, "w"): [0.5, 2.0]}})
    assert (kind, text) == (PARAMETER, "parameter w is [0.5, 1.0] on rank 0 but [0.5, 2.0] on rank 3")
    kind, text = checks.difference({0: {}, 1: {(MODEL, "w"): "float32 [2]"}})
    assert kind == MODEL
    assert "missing on rank 0" in text


def test_every_parameter_gets_its_turn(monkeypatch):
    names = [f"p{i}" for i in range(11)]
    seen = {name for n in range(1, checks.EVERY * 8) if checks.is_due(n) for name in checks.in_turn(names, n)}
    assert seen == set(names)
    monkeypatch.setenv("CORRO_CHECKS", "2")
    assert checks.in_turn(names, 5) == names


def test_positions_are_few_and_inside():
    for count in (0, 1, 7, 8, 9, 100, 12345):
        for n in range(40):
            where = checks.positions(count, n)
            assert len(where) <= checks.ELEMENTS
            assert all(0 <= i < count for i in where)
            assert bool(len(where)) == bool(count)


@pytest.mark.parametrize("step", [16, 17, 256, 1024])
def test_other_elements_in_other_rounds(step):
    # A model of 32 parameters: each has its turn in every eighth look.
    looks = [n * checks.EVERY for n in range(1, 8 * 100, 8)]
    first = {checks.positions(step * checks.ELEMENTS, n).start for n in looks}
    assert len(first) > min(step, len(looks)) // 3, first
    # With CORRO_CHECKS=2 every round is looked at.
    first = {checks.positions(step * checks.ELEMENTS, n).start for n in range(1000, 1100)}
    assert len(first) > min(step, 100) // 3, first


def test_digests_are_never_zero():
    assert checks.digest([]) != 0
    assert checks.digest([1]) != checks.digest([2])
