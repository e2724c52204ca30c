"""Whether the ranks train one model together, in MXNet: what `corro._front.checks` compares, and when.

A round is one reduction of all gradients. In rounds that are looked at, this waits for the weights that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from corro._front import checks
from corro._front.process_sets import ProcessSet


class TrainingWatch:
    """Looks after the weights that an optimizer trains."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._watch = checks.Watch(process_set)

    def look(self, optimizer: Any, weights: Sequence[tuple[str, Any]]) -> None:
        """Counts a round, and compares what the ranks have if the round is one to look at. `weights`: by name."""
        if not self._watch.next_round():
            return
        number = self._watch.rounds
        facts: dict[tuple[str, str], Any] = {
            (checks.RATE, ""): optimizer.learning_rate,
            (checks.STEPS, "taken"): optimizer.num_update,
        }
        # From the second round on: before that, weights whose shapes were not known have only just been broadcast.
        for name, weight in checks.in_turn(weights, number) if number > 1 else ():
            facts[checks.PARAMETER, name] = _elements(weight, number)
        self._watch.compare(facts)


def _elements(weight: Any, round_number: int) -> list[float]:
    where = checks.positions(weight.size, round_number)
    chosen = mx.nd.array(list(where), ctx=weight.context, dtype="int64")
    return (
        [float(value) for value in mx.nd.take(weight.as_nd_ndarray().reshape((-1,)), chosen).asnumpy()] if where else []
    )
