"""What `compression="auto"` makes of the times it has measured."""

from corro._front.auto_compression import LARGE, SMALL, Cost, choose


def test_the_fastest_is_chosen_if_it_is_worth_it():
    slow_link = {"none": Cost(0.01, 0.4), "bf16": Cost(0.01, 0.2), "int8": Cost(0.012, 0.11)}
    assert choose(slow_link, LARGE) == "int8"
    assert choose(slow_link, 100 * LARGE) == "int8"
    assert choose(slow_link, SMALL) == "none", "small tensors cost their latency"
    fast_link = {"none": Cost(0.0001, 0.002), "bf16": Cost(0.0001, 0.00195), "int8": Cost(0.0002, 0.004)}
    assert choose(fast_link, LARGE) == "none", "3 % are not worth rounding"


def test_a_cost_grows_with_bytes_and_never_shrinks():
    cost = Cost(0.5, 0.1)
    assert cost.of(0) == cost.of(SMALL) == cost.of(LARGE) == 0.5
    cost = Cost(0.0, 1.0)
    assert cost.of(LARGE) == 1.0
    assert cost.of(SMALL) == 0.0
    assert abs(cost.of(2 * LARGE - SMALL) - 2.0) < 1e-12
