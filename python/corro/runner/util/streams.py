"""A pipe in memory, between the threads of a process."""

from __future__ import annotations

import threading
import time
from typing import AnyStr, Generic

__all__ = ["Pipe"]


class Pipe(Generic[AnyStr]):
    """What one thread writes, another reads. Text and bytes both travel, but not through the same pipe.

    A `write` waits until the one before has been read to its end, so that a writer is never far ahead of its reader.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._content: AnyStr | None = None
        self._closed = False

    def write(self, buf: AnyStr) -> int:
        """Hands `buf` over, and gives its length. `RuntimeError` once the pipe is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._content is None)
            if self._closed:
                raise RuntimeError("this pipe is closed: nothing can be written to it any more.")
            if len(buf):
                self._content = buf
                self._changed.notify_all()
            return len(buf)

    def read(self, length: int = -1, timeout: float | None = None) -> AnyStr | None:
        """Up to `length` characters (all that was written at once, if negative), as soon as there are any.

        None at the end, which is when the pipe is closed and everything has been read. `TimeoutError` after `timeout`
        seconds without a character.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._content is None and not self._closed:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"nothing was written to this pipe for {timeout} seconds.")
                self._changed.wait(left)
            content = self._content
            if content is None:
                return None
            if 0 <= length < len(content):
                self._content = content[length:] or None
                content = content[:length]
            else:
                self._content = None
            self._changed.notify_all()
            return content

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Ends the pipe: writers that wait are told so, and readers get what is left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
