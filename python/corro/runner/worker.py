"""What `corro.run` starts in each process: takes the call out of the job's store, makes it, and puts the result there.

A result is a pickled pair: what the function returned, and what it raised.
"""

from __future__ import annotations

import traceback

import cloudpickle

from corro import _native


def main() -> None:
    func, args, kwargs = cloudpickle.loads(_native.payload())
    try:
        result = func(*args, **kwargs)
    except Exception as error:
        _give_reason(error)
        raise
    _native.give_result(cloudpickle.dumps((result, None)))


def _give_reason(error: Exception) -> None:
    """Sends the exception to whoever called `corro.run`. Its traceback cannot travel, so its text goes with it."""
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note("".join(["In the worker:\n", *traceback.format_tb(error.__traceback__)]).rstrip())
    try:
        _native.give_result(cloudpickle.dumps((None, error)))
    except Exception:
        # Not every exception can be pickled; the launcher shows what this process writes to stderr.
        traceback.print_exc()


if __name__ == "__main__":
    main()
