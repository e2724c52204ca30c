"""What a process says about its own end: the exception that nobody caught, or how else its program came to an end.

The other ranks get it in the error of whatever they wait for, and whoever started this process shows it as the reason why
the job failed. Nothing is caught or changed here: tracebacks are printed as always, exit codes stay what they are.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from corro import _native

# Class, text, and places: what `_native` takes for an exception.
_Raised = tuple[str, str, list[tuple[str, int, str]]]

# Places in the code of others say less than the line of the program that led there.
_OTHERS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.__file__) + os.sep,
    f"{os.sep}site-packages{os.sep}",
    f"{os.sep}dist-packages{os.sep}",
    "<frozen",
)
# Where the exception of a program that ends by it began: in its main module.
_OUTERMOST = {"<module>", "_run_module_as_main"}


class _LastWords:
    """How this process came to its end, as far as that is known."""

    def __init__(self) -> None:
        self.process: int | None = None
        self.said = False
        self.code: int | None = None
        # The exception that was being dealt with when the program asked to exit, or that has ended a thread.
        self.after: BaseException | None = None


_words = _LastWords()


def listen(when_it_fails: Callable[[], None], at_exit: Callable[[], None]) -> None:
    """Has `at_exit` called at the end of the program; before that `when_it_fails`, if an exception ends it.

    That is before its threads are waited for: one may wait for an operation for which the others wait in vain. Only the
    first call has an effect.
    """
    if _words.process is not None:
        return
    _words.process = os.getpid()
    _native.open_statements()

    def main_thread_ended() -> None:
        if _is_here() and uncaught() is not None:
            when_it_fails()

    # The only moment between the end of the main thread and the wait for all others. Without it `at_exit` tells it, later.
    with contextlib.suppress(AttributeError, RuntimeError):
        threading._register_atexit(main_thread_ended)  # type: ignore[attr-defined]
    atexit.register(lambda: at_exit() if _is_here() else None)
    _watch_threads()
    _watch_exit()


def say() -> None:
    """Says how this process ends, once."""
    if _words.said or not _is_here():
        return
    _words.said = True
    error = uncaught()
    told = error or _words.after
    _native.leaving(
        _described(told) if told is not None else None,
        error is not None,
        _words.code,
        [_text(part) for part in _chain(told)],
    )


def handled() -> _Raised | None:
    """The exception that the program is dealing with just now, say in a `finally`."""
    error = sys.exc_info()[1]
    return None if error is None else _described(error)


def has_failed() -> bool:
    """Whether this process is known to end with an error."""
    return uncaught() is not None or bool(_words.code)


def uncaught() -> BaseException | None:
    """The exception by which the program ends, if it does."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None  # Somebody types, and goes on after an exception.
    error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException) or error.__traceback__ is None:
        return None
    # Test runners and the like put exceptions there that they have caught.
    return error if error.__traceback__.tb_frame.f_code.co_name in _OUTERMOST else None


def _is_here() -> bool:
    # A forked child inherits all this, but is no rank.
    return _words.process == os.getpid()


def _watch_threads() -> None:
    before = threading.excepthook

    def raised(args: Any) -> None:
        if args.exc_value is not None and _is_here() and not _words.said:
            _words.after = args.exc_value
            _native.thread_raised(_described(args.exc_value))
        before(args)

    threading.excepthook = raised


def _watch_exit() -> None:
    """Python does not tell what a program exits with; `sys.exit` is where it says so."""
    before = sys.exit

    @functools.wraps(before)
    def exit(status: Any = None, /) -> None:  # noqa: A001 - it is that one
        if _is_here() and threading.current_thread() is threading.main_thread():
            _words.code = status if isinstance(status, int) else int(status is not None)
            _words.after = sys.exc_info()[1] or _words.after
        before(status)

    sys.exit = exit  # type: ignore[assignment]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and those behind it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(seen) < 30:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _described(error: BaseException) -> _Raised:
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    return name, _text(error), _places(error.__traceback__)


def _places(where: TracebackType | None) -> list[tuple[str, int, str]]:
    """Where the program was, last: up to the last line that is its own."""
    try:
        frames = traceback.extract_tb(where)
    except Exception:
        return []
    places = [(frame.filename, frame.lineno or 0, frame.name) for frame in frames]
    own = [at for at, (file, _, _) in enumerate(places) if not any(part in file for part in _OTHERS)]
    return places[: own[-1] + 1] if own else places
