"""What became of a job that ran a function: its results, or the exception that says who failed and why."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import cloudpickle

from corro.runner._notes import IN_THE_WORKER

__all__ = ["JobFailed", "interpret"]


class JobFailed(RuntimeError):
    """A process of `corro.run` has failed. `rank` says which. `__cause__` is the exception there, if it could be sent.

    Example:
        >>> import corro
        >>> from corro.runner import JobFailed
        >>> def train():
        ...     raise ValueError("no data")
        >>> try:
        ...     corro.run(train, num_proc=1)
        ... except JobFailed as failure:
        ...     print(failure.rank, repr(failure.__cause__))
        0 ValueError('no data')
    """

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of two tracebacks, of which one leads through this module only."""
        lines = []
        if self.__cause__ is not None:
            lines += [f"Traceback of rank {self.rank} (most recent call last):", *_worker_traceback(self.__cause__)]
            lines += [_summary(self.__cause__), ""]
        return [*lines, f"{type(self).__name__}: {self}"]


def interpret(results: Sequence[bytes | None], failure: tuple[str, int | None] | None, name: str) -> list[Any]:
    """What `func` returned, by rank. `JobFailed` if the job failed, which `name` has started."""
    if failure is not None:
        text, rank = failure
        culprit = _raised_on(results, rank)
        if culprit is not None:
            # What the worker wrote last (the indented lines) is that exception, which is shown in full.
            first, *rest = text.split("\n")
            kept = [line for line in rest if not line.startswith("    ")]
            text = "\n".join([f"{first} ({_summary(culprit)})", *kept])
        raise JobFailed(f"{name} failed: {text}", rank) from culprit
    return [cloudpickle.loads(result)[0] if result is not None else None for result in results]


def _raised_on(results: Sequence[bytes | None], rank: int | None) -> BaseException | None:
    """What `func` raised in the rank that failed first, if it could be sent."""
    given = results[rank] if rank is not None and rank < len(results) else None
    if given is None:
        return None
    _, error = cloudpickle.loads(given)
    return error


def _worker_traceback(error: BaseException) -> list[str]:
    """The frames that `corro.runner.worker` has noted down, which cannot travel by themselves."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(IN_THE_WORKER)]
    return notes[0].splitlines()[1:] if notes else []


def _summary(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).splitlines()[0]
