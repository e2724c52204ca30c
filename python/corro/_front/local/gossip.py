"""Gossip: after each step, half of what a rank has goes to one other rank (stochastic gradient push).

A rank holds a vector x and a weight w, and takes x / w for its parameters (push-sum). The sums of all x and of all w
never change, so that x / w tends to the mean whatever the graph is.

| graph | who sends to whom at step k |
| --- | --- |
| exponential | rank r to r + 2^(k mod log2 n): for n = 2^j all have the mean after j steps without learning |
| ring | rank r to r + 1: mixes slowly |
| random | each to another one, by a seed that all have |
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from corro._front.arguments import set_size
from corro._front.local.parameters import Parameters, Vector, average, everything, send
from corro._front.process_sets import ProcessSet, global_process_set

GRAPHS = ("exponential", "ring", "random")


def peers(graph: str, size: int, step: int, seed: int = 0) -> list[int]:
    """To whom each rank sends. The same on all ranks."""
    if graph == "random":
        chance = random.Random(f"{seed} {step}")
        return [(rank + chance.randrange(1, size)) % size for rank in range(size)]
    distance = 1 << (step % max(1, (size - 1).bit_length())) if graph == "exponential" else 1
    return [(rank + distance) % size for rank in range(size)]


class Gossip:
    """See the module. `step` is called after each step of the optimizer."""

    def __init__(
        self,
        parameters: Parameters,
        graph: str = "exponential",
        seed: int = 0,
        process_set: ProcessSet = global_process_set,
        name: str = "gossip",
    ) -> None:
        if graph not in GRAPHS:
            raise ValueError(f"graph={graph!r}: must be one of {', '.join(GRAPHS)}.")
        self._parameters, self._graph, self._seed = parameters, graph, seed
        self._process_set, self._name = process_set, name
        self.steps = 0
        # The weight of what this rank has.
        self.weight = 1.0

    def step(self) -> None:
        """Counts a step, and sends half of everything to one rank."""
        self.steps += 1
        size, me = set_size(self._process_set), self._process_set.rank() or 0
        if size == 1:
            return
        to = peers(self._graph, size, self.steps - 1, self._seed)
        which = everything(self._parameters)
        mine = self._parameters.read(which) * np.float32(self.weight)
        half: Vector = np.append(mine, np.float32(self.weight)) * np.float32(0.5)
        splits = [half.size if rank == to[me] else 0 for rank in range(size)]
        received = send(half, to[me], splits, self._process_set, self._name)
        for other in received.reshape(-1, half.size):
            half += other
        self.weight = float(half[-1])
        self._parameters.write(which, half[:-1] / half[-1])

    def settle(self) -> None:
        """Makes all ranks alike: the mean. All must call it."""
        which = everything(self._parameters)
        weighed = self._parameters.read(which) * np.float32(self.weight)
        average(weighed, self._process_set, f"{self._name}.settle")
        self._parameters.write(which, weighed)
        self.weight = 1.0

    def abandon(self) -> None:
        """Ranks were lost, and with them what they held: those that are left begin with equal weights."""
        self.weight = 1.0

    def join_in(self, state: dict[str, Any]) -> None:
        """Takes the parameters from there, too."""
        self._parameters.write(everything(self._parameters), state["parameters"])

    def state_dict(self) -> dict[str, Any]:
        """What a new rank must know."""
        return {"steps": self.steps, "parameters": self._parameters.read(everything(self._parameters))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.steps = state["steps"]
        self.weight = 1.0
