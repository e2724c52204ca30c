"""What the autograd engine tells of the backward pass that is running."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

# The autograd engine's: which backward pass runs in this thread, and what to call when it has come to its end.
graph_task: Callable[[], int] = torch._C._current_graph_task_id
queue_callback: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
# The frame in which a backward written in Python runs.
_FUNCTIONS_BACKWARD = torch.autograd.function.BackwardCFunction.apply.__code__


def node_around() -> Any:
    """The function whose backward is running in this thread, and has started the pass that ends here; None if none has."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not _FUNCTIONS_BACKWARD:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals["self"]


def when_it_goes_on(node: Any, call: Callable[[], None]) -> list[Any]:
    """Has `call` called once, when the pass that `node` is in comes to what follows the node. Gives hooks to be removed."""
    hooks: list[Any] = []

    def once(_gradients: Any) -> None:
        while hooks:
            hooks.pop().remove()
        call()

    hooks += [function.register_prehook(once) for function, _ in node.next_functions if function is not None]
    return hooks
