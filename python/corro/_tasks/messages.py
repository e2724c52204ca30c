"""What the driver and the launcher's process say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Ended", "Kind", "LetGo", "Request"]


@dataclass(frozen=True)
class Kind:
    """What tasks are called where they live: `Spark`'s `task` in an `executor`, `Ray`'s `actor` on a `node`."""

    system: str
    noun: str
    place: str


@dataclass(frozen=True)
class Request:
    """What is to be run, how many tasks must be there before it begins, and how many are waited for a little."""

    key: bytes = field(repr=False)  # errors and logs are no place for it
    listener: int
    kind: Kind
    fewest: int
    most: int
    is_elastic: bool
    flags: Sequence[str]
    command: Sequence[str]
    payload: bytes = field(repr=False)
    variables: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class LetGo:
    """A task that is to leave the job: its ranks are asked to, and nobody is put there again."""

    index: int


@dataclass(frozen=True)
class Ended:
    """What became of it. `lost` are tasks that went away by themselves: their number, rank (if known) and host."""

    results: Sequence[bytes | None] = ()
    failure: tuple[str, int | None] | None = None
    lost: Sequence[tuple[int, int | None, str]] = field(default_factory=tuple)
