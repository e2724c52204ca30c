"""Hosts, their slots, and which rank runs where. Pure: the launcher has its own, in `crates/corro-launch`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class HostInfo:
    """A host and how many processes it takes."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """`name:4`."""
        hostname, slots = parse_host_slots(host_string)
        return HostInfo(hostname, slots)


@dataclass(frozen=True)
class SlotInfo:
    """One process's place: on which host, and its ranks."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int | None = None
    local_size: int | None = None
    cross_size: int | None = None

    def to_response_string(self) -> str:
        """Its numbers, as the elastic driver sends them."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(str(number) for number in numbers)


def parse_host_slots(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+):(\d+)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a host with its slots: write name:4.")
    return match.group(1), int(match.group(2))


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """`h1:2,h2:4`."""
    return [HostInfo.from_string(text) for text in hosts_string.split(",")]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """The names in `h1:2,h2:4`, and the slots of each."""
    infos = parse_hosts(hosts)
    return [info.hostname for info in infos], {info.hostname: info.slots for info in infos}


def parse_host_files(filename: str) -> str:
    """A hostfile, with `name slots=4` on each line, as `h1:2,h2:4`. Comments and blank lines are skipped."""
    hosts = []
    with open(filename, encoding="utf-8") as file:
        for line in file:
            words = line.split("#")[0].split()
            if words:
                slots = next((word.removeprefix("slots=") for word in words[1:] if word.startswith("slots=")), "1")
                hosts.append(f"{words[0]}:{slots}")
    return ",".join(hosts)


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """A place for each process: host after host, as many as there are slots, up to `max_num_proc`."""
    places: list[tuple[str, int]] = []
    for host in hosts:
        for local_rank in range(host.slots):
            if max_num_proc is None or len(places) < max_num_proc:
                places.append((host.hostname, local_rank))
    if len(places) < min_num_proc:
        raise ValueError(f"Requested more processes ({min_num_proc}) than there are available slots ({len(places)})")
    columns: dict[int, list[str]] = {}
    local_sizes: dict[str, int] = {}
    for hostname, local_rank in places:
        columns.setdefault(local_rank, []).append(hostname)
        local_sizes[hostname] = local_sizes.get(hostname, 0) + 1
    return [
        SlotInfo(
            hostname,
            rank,
            local_rank,
            columns[local_rank].index(hostname),
            len(places),
            local_sizes[hostname],
            len(columns[local_rank]),
        )
        for rank, (hostname, local_rank) in enumerate(places)
    ]
