"""The state of an elastic job whose ranks keep their own steps.

When a rank is lost, the others lose nothing: they drop what was on the way, meet anew and go on with the parameters
they have. What must be common (the step counter, the outer parameters and their momentum) they take from rank 0, since
it may be that some had finished an outer step and others not. A new rank takes the parameters, too.
"""

from __future__ import annotations

from typing import Any, Protocol

from corro._front import basics
from corro._front.elastic import State
from corro._front.objects import broadcast_object


class Training(Protocol):
    """Local SGD, DiLoCo or gossip."""

    def abandon(self) -> None:
        """Forgets what is on the way."""

    def state_dict(self) -> dict[str, Any]:
        """What ranks have in common."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there, with its own parameters."""

    def join_in(self, state: dict[str, Any]) -> None:
        """Takes the parameters from there, too."""


class LocalState(State):
    """For `hvd.elastic.run`, where ranks take steps of their own (`hvd.LocalSGD`, `hvd.DiLoCo`, `hvd.Gossip`).

    A rank that is lost takes its own steps since the last meeting with it, and nothing else: the others keep theirs.
    `commit()` looks whether hosts have changed; all ranks must call it after the same steps.
    """

    def __init__(self, training: Training) -> None:
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank)
        self.training = training

    def save(self) -> None:
        """Nothing: each rank goes on with what it has."""

    def restore(self) -> None:
        """Drops what was on the way."""
        self.training.abandon()

    def sync(self) -> None:
        """Takes over what rank 0 has of what is common; a new rank its parameters, too."""
        is_new = self._progress == 0
        common = broadcast_object(self.training.state_dict(), 0, "elastic.local")
        self.training.load_state_dict(common)
        if is_new:
            self.training.join_in(common)
