"""Which actors an elastic job should start, and which it should let go. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ANYWHERE", "Change", "needed", "pause", "slots_of"]

# Where an actor may run if nobody has said: wherever Ray has room.
ANYWHERE = ""


@dataclass(frozen=True)
class Change:
    """Hosts to start an actor on, one for each, and the numbers of actors to let go."""

    start: Sequence[str] = field(default_factory=tuple)
    stop: Sequence[int] = field(default_factory=tuple)


def needed(wanted: Mapping[str, int], present: Mapping[int, str], most: int | None) -> Change:
    """From what is wanted on each host and the hosts of the actors there are, by number, to what is to be done.

    The newest are let go first. `most` limits all together.
    """
    there = Counter(present.values())
    stop: list[int] = []
    for number in sorted(present, reverse=True):
        host = present[number]
        too_many = most is not None and len(present) - len(stop) > most
        if there[host] > wanted.get(host, 0) or too_many:
            there[host] -= 1
            stop.append(number)
    start = [host for host, count in wanted.items() for _ in range(count - there[host])]
    room = len(start) if most is None else max(0, most - sum(there.values()))
    return Change(start[:room], stop)


def slots_of(nodes: Sequence[Mapping[str, Any]], cpus: float, gpus: float) -> dict[str, int]:
    """How many workers the nodes of a cluster can hold, by address, from what `ray.nodes()` says. None: not named."""
    found: Counter[str] = Counter()
    for node in nodes:
        if not node["Alive"]:
            continue
        has = node["Resources"]
        rooms = [has.get(name, 0) // each for name, each in (("CPU", cpus), ("GPU", gpus)) if each]
        found[node["NodeManagerAddress"]] += int(min(rooms, default=0))
    return {address: slots for address, slots in found.items() if slots}


def pause(failures: int) -> float:
    """Seconds before an actor that has failed as often in a row is started again: none at first, half a minute at most."""
    return 0.0 if failures <= 1 else min(2.0 ** (failures - 2), 30.0)
