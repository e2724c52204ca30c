"""What the autograd engine tells of the backward pass that is running."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

# The autograd engine's: which backward pass runs in this thread, and what to call when it has come to its end.
graph_task: Callable[[], int] = torch._C._current_graph_task_id
queue_callback: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
# The frame in which a backward written in Python runs.
_FUNCTIONS_BACKWARD = torch.autograd.function.BackwardCFunction.apply.__code__


def within_backward() -> bool:
    """Whether the backward of some function is running in this thread, and has started the pass that ends here."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not _FUNCTIONS_BACKWARD:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None
