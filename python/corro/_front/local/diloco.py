"""DiLoCo: ranks train alone for many steps; an outer optimizer takes what they have learned together for a gradient.

Each rank keeps the parameters that all have in common (the outer ones). Every `every` steps the difference between
these and the rank's own, averaged over all ranks, is the gradient of an outer step with Nesterov momentum, and all go
on from where it leads.

*Streaming*: the parameters are cut into fragments, whose turns are spread over the steps; what is sent may take
`delay` steps to come back while training goes on; and of what a rank has at that time it keeps `alpha`. So the link is
used evenly, and nobody waits.

An outer step either happens or not: nothing is changed before the average has come. If ranks are lost on the way, the
others go on with what they have, and the next turn of the fragment takes along what this one would have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corro import _native
from corro._front.engine_compression import EngineCompression
from corro._front.local.outer import Nesterov
from corro._front.local.parameters import Parameters, Vector, start_average
from corro._front.process_sets import ProcessSet, global_process_set


@dataclass
class Fragment:
    """Some of the parameters, and what all ranks have in common of them."""

    which: range
    outer: Vector
    velocity: Vector
    # The step at which the average must be there, and what it is being made of.
    arrives: int = 0
    handle: int | None = field(default=None, repr=False)


class DiLoCo:
    """See the module. `step` is called after each step of the inner optimizer."""

    def __init__(
        self,
        parameters: Parameters,
        outer: Nesterov | None = None,
        every: int = 100,
        fragments: int = 1,
        delay: int = 0,
        alpha: float = 0.0,
        compression: EngineCompression | str | None = None,
        process_set: ProcessSet = global_process_set,
        name: str = "diloco",
    ) -> None:
        sizes = parameters.sizes()
        if not 1 <= fragments <= len(sizes):
            raise ValueError(f"fragments={fragments}: {len(sizes)} parameters make 1 to {len(sizes)} fragments.")
        if every < fragments:
            raise ValueError(
                f"every={every}: {fragments} fragments, each with a step of its own, need {fragments} or more."
            )
        if not 0 <= delay < every // fragments:
            raise ValueError(
                f"delay={delay}: a fragment must come back before the next one is sent, within {every // fragments} steps."
            )
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha={alpha}: alpha must be between 0 (what all have) and 1 (what this rank has).")
        if isinstance(compression, str):
            compression = EngineCompression(compression)
        if compression is not None and not isinstance(compression, EngineCompression):
            raise ValueError(
                f"compression={compression!r}: must be one that the engine does, such as Compression.int8()."
            )
        self._parameters, self._outer, self._every = parameters, outer or Nesterov(), every
        self._delay, self._alpha = delay, np.float32(alpha)
        self._compression = None if compression is None else compression.spec
        self._process_set, self._name = process_set, name
        self.steps = 0
        self._fragments = [self._fragment(which) for which in cut(sizes, fragments)]

    def step(self) -> None:
        """Counts a step; sends the fragment whose turn it is, and takes in the one that is due."""
        self.steps += 1
        number = turn(self.steps, self._every, len(self._fragments))
        if number is not None:
            self._send(number)
        for fragment in self._fragments:
            if fragment.handle is not None and fragment.arrives <= self.steps:
                self._take_in(fragment)

    def settle(self) -> None:
        """Makes all ranks alike: takes in what is on the way, then leaves what a rank has alone. All must call it."""
        for fragment in self._fragments:
            if fragment.handle is not None:
                self._take_in(fragment)
        self._adopt()

    def abandon(self) -> None:
        """Forgets what is on the way, since ranks were lost: what it was made of is still in the parameters."""
        for fragment in self._fragments:
            fragment.handle = None

    def join_in(self, state: dict[str, Any]) -> None:
        """Takes the parameters from there, too."""
        self.load_state_dict(state)
        self._adopt()

    def _adopt(self) -> None:
        """Goes on from what all have in common."""
        for fragment in self._fragments:
            self._parameters.write(fragment.which, fragment.outer)

    def state_dict(self) -> dict[str, Any]:
        """What all ranks have in common. (Inner optimizers are each rank's own.)"""
        vectors = [(fragment.outer.copy(), fragment.velocity.copy()) for fragment in self._fragments]
        return {"steps": self.steps, "fragments": vectors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there; what was on the way is forgotten."""
        loaded = state["fragments"]
        shapes = [fragment.outer.shape for fragment in self._fragments]
        if [outer.shape for outer, _ in loaded] != shapes:
            raise ValueError("the saved DiLoCo has another number of fragments, or belongs to another model.")
        self.abandon()
        self.steps = state["steps"]
        for fragment, (outer, velocity) in zip(self._fragments, loaded, strict=True):
            fragment.outer, fragment.velocity = outer.copy(), velocity.copy()

    def _fragment(self, which: range) -> Fragment:
        outer = self._parameters.read(which)
        return Fragment(which, outer, np.zeros_like(outer))

    def _send(self, number: int) -> None:
        fragment = self._fragments[number]
        gradient: Vector = fragment.outer - self._parameters.read(fragment.which)
        name = f"{self._name}.{number}"
        fragment.handle = start_average(gradient, self._process_set, name, self._compression)
        fragment.arrives = self.steps + self._delay

    def _take_in(self, fragment: Fragment) -> None:
        assert fragment.handle is not None
        handle, fragment.handle = fragment.handle, None
        gradient: Vector = _native.wait(handle)
        self._outer.step(fragment.outer, gradient, fragment.velocity)
        mixed = fragment.outer
        if self._alpha:
            mixed = (1 - self._alpha) * fragment.outer + self._alpha * self._parameters.read(fragment.which)
        self._parameters.write(fragment.which, mixed)


def turn(step: int, every: int, fragments: int) -> int | None:
    """Whose turn it is after a step: fragment f comes (f + 1) / fragments of the way through each `every` steps."""
    inside = (step - 1) % every + 1
    number = (inside * fragments - 1) // every
    return number if inside == (number + 1) * every // fragments else None


def cut(sizes: list[int], fragments: int) -> list[range]:
    """Neighbouring parameters together, at least one to a fragment, and about as many values in each."""
    ranges, first, left = [], 0, sum(sizes)
    for number in range(fragments):
        still = fragments - number
        end, inside = first, 0
        # Of the parameters that are left, each later fragment needs one.
        while end < len(sizes) - (still - 1) and (end == first or (inside + sizes[end] / 2) * still <= left):
            inside += sizes[end]
            end += 1
        if still == 1:
            end = len(sizes)
        ranges.append(range(first, end))
        left -= sum(sizes[first:end])
        first = end
    return ranges
