"""The outer optimizer of DiLoCo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corro._front.local.parameters import Vector


@dataclass(frozen=True)
class Nesterov:
    """The outer optimizer of DiLoCo: SGD with Nesterov's momentum. `Nesterov(1, 0)` averages parameters.

    Example:
        >>> hvd.Nesterov(lr=0.7, momentum=0.9)
        Nesterov(lr=0.7, momentum=0.9)
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not (self.lr > 0 and 0 <= self.momentum < 1):
            raise ValueError(f"{self}: lr must be above 0, momentum at least 0 and below 1.")

    def step(self, values: Vector, gradient: Vector, velocity: Vector) -> None:
        """Changes values and velocity in place."""
        velocity *= self.momentum
        velocity += gradient
        values -= self.lr * (gradient + self.momentum * velocity)
