"""Local SGD: ranks take their own steps, and average their parameters every so often.

*Post-local*: in the first `start` steps they average after each. *Hierarchical*: ranks of a host average after each
step, all ranks every so often. Averaging parameters after a step is the same as averaging gradients before it, as long
as the optimizer is linear in them (SGD, with momentum too).
"""

from __future__ import annotations

from typing import Any

from corro._front.arguments import set_size
from corro._front.local.parameters import Parameters, average, everything
from corro._front.process_sets import ProcessSet, global_process_set


class Averaging:
    """See the module. `step` is called after each step of the optimizer."""

    def __init__(
        self,
        parameters: Parameters,
        every: int,
        start: int = 0,
        host: ProcessSet | None = None,
        process_set: ProcessSet = global_process_set,
        name: str = "local_sgd",
    ) -> None:
        if every < 1:
            raise ValueError(f"every={every}: every must be 1 or more: the number of steps between two averages.")
        self._parameters, self._every, self._start = parameters, every, start
        self._host, self._process_set, self._name = host, process_set, name
        self.steps = 0

    def step(self) -> None:
        """Counts a step, and averages if it is time."""
        self.steps += 1
        if self.steps <= self._start or self.steps % self._every == 0:
            self._average(self._process_set, self._name)
        elif self._host is not None and set_size(self._host) > 1:
            self._average(self._host, f"{self._name}.host")

    def settle(self) -> None:
        """Makes all ranks alike: averages once more. All must call it."""
        self._average(self._process_set, self._name)

    def abandon(self) -> None:
        """Forgets what was under way; nothing is, between steps."""

    def state_dict(self) -> dict[str, Any]:
        """What a new rank must know."""
        return {"steps": self.steps, "parameters": self._parameters.read(everything(self._parameters))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.steps = state["steps"]

    def join_in(self, state: dict[str, Any]) -> None:
        """Takes the parameters from there, too."""
        self._parameters.write(everything(self._parameters), state["parameters"])

    def _average(self, process_set: ProcessSet, name: str) -> None:
        if set_size(process_set) == 1:
            return
        which = everything(self._parameters)
        values = self._parameters.read(which)
        average(values, process_set, name)
        self._parameters.write(which, values)
