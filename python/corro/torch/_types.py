"""What `DistributedOptimizer` gives, for type checkers. Nothing here exists when a program runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:

    class Distributed(torch.optim.Optimizer, Any):
        """An optimizer of the class that `DistributedOptimizer` was given one of, with these methods besides.

        Python has no type for both. By its base `Any` it passes for an optimizer of every class, and has the attributes of
        that class; what is said here and what all optimizers have is checked.
        """

        @property
        def backward_passes_per_step(self) -> int: ...
        def set_backward_passes_per_step(self, passes: int) -> None: ...
        def synchronize(self) -> None: ...
        def skip_synchronize(self) -> AbstractContextManager[None]: ...
