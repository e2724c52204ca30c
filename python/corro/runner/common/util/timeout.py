"""A deadline that several activities share."""

from __future__ import annotations

import time

__all__ = ["Timeout", "TimeoutException"]


class TimeoutException(Exception):
    """The deadline has passed."""


class Timeout:
    """`timeout` seconds from now. `message` may have `{activity}` and `{timeout}` in it."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._message = message
        self._until = time.monotonic() + timeout

    def remaining(self) -> float:
        """How many seconds are left, never less than 0."""
        return max(0.0, self._until - time.monotonic())

    def timed_out(self) -> bool:
        return time.monotonic() > self._until

    def check_time_out_for(self, activity: str) -> None:
        """Raises `TimeoutException`, which says that one was waiting for `activity`, once the time is over."""
        if self.timed_out():
            said = self._message.replace("{activity}", activity).replace("{timeout}", str(self._timeout))
            raise TimeoutException(f"{said} Timeout after {self._timeout} seconds.")
