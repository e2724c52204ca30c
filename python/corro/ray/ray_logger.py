"""Values that a training function sends to the callbacks of the program that has started it."""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["configure", "log"]

_queue: Any = None
_warned = False


def configure(queue: Any) -> None:
    """Where `log` sends to: a `ray.util.queue.Queue`, or anything else with `put`. Set by Corro in its workers.

    Example:
        >>> import queue
        >>> from corro.ray import ray_logger
        >>> told = queue.Queue()
        >>> ray_logger.configure(told)
        >>> ray_logger.log({"loss": 0.5})
        >>> told.get()
        {'loss': 0.5}
        >>> ray_logger.configure(None)
    """
    global _queue
    _queue = queue


def log(info_dict: dict[str, Any]) -> None:
    """Sends a dictionary to the callbacks of `run`. Says so once if nobody listens.

    Example:
        >>> from corro.ray import ray_logger
        >>> ray_logger.log({"loss": 0.25})
    """
    global _warned
    if _queue is not None:
        _queue.put(info_dict)
    elif not _warned:
        _warned = True
        warnings.warn(
            "ray_logger.log: there is no callback that takes this. Give some to an elastic job: run(fn, callbacks=[...]).",
            stacklevel=2,
        )
