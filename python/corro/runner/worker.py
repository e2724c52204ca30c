"""What `corro.run` starts in each process: takes the call out of the job's store, makes it, and puts the result there.

A result is a pickled pair: what the function returned, and what it raised.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

import cloudpickle

from corro import _native
from corro.runner._notes import IN_THE_WORKER

# Whether the exception that ends this process is on its way to whoever called `corro.run`, who will show it.
_given = False


def main() -> None:
    global _given
    sys.excepthook = _print_unless_given
    func, args, kwargs = cloudpickle.loads(_native.payload())
    try:
        result = func(*args, **kwargs)
    except Exception as error:
        _given = _give_reason(error)
        raise
    _native.give_result(cloudpickle.dumps((result, None)))


def _give_reason(error: Exception) -> bool:
    """Sends the exception to whoever called `corro.run`. Its traceback cannot travel, so its text goes with it."""
    if not hasattr(error, "add_note"):  # before Python 3.11: the traceback would be lost, so it is printed here
        _send(error)
        return False
    # The first frame is this file's.
    frames = traceback.format_tb(error.__traceback__)[1:]
    error.add_note("".join([f"{IN_THE_WORKER}\n", *frames]).rstrip())
    return _send(error)


def _send(error: Exception) -> bool:
    try:
        _native.give_result(cloudpickle.dumps((None, error)))
    except Exception:
        # Not every exception can be pickled; the launcher shows what this process writes to stderr.
        return False
    return True


def _print_unless_given(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    if not _given:
        sys.__excepthook__(kind, error, frames)


if __name__ == "__main__":
    main()
