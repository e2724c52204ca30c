"""Arguments of Python functions as flags of `corro run`."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["asked", "given", "watching"]


def given(flag: str, value: Any) -> list[str]:
    """A flag with a value, if there is one."""
    # One word: a value that begins with a dash must not be taken for a flag.
    return [] if value is None else [f"{flag}={value}"]


def asked(flag: str, wanted: bool | str | os.PathLike[str]) -> list[str]:
    """A flag that may have a value, or none."""
    if isinstance(wanted, bool):
        return [flag] if wanted else []
    return [f"{flag}={os.fspath(wanted)}"]


def watching(
    page: bool | str,
    record: str | os.PathLike[str] | None,
    report: bool | str | os.PathLike[str],
    logdir: str | os.PathLike[str] | None,
) -> list[str]:
    """The flags by which a job is watched."""
    return [*given("--record", record), *given("--logdir", logdir), *asked("--page", page), *asked("--report", report)]
