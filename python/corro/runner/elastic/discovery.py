"""Which hosts an elastic job may use now, and how many processes each takes: the place to plug in a source of your own.

    class FromScheduler(HostDiscovery):
        def find_available_hosts_and_slots(self):
            return {"node-7": 4, "node-9": 4}

Nothing here starts a process, apart from the discovery script.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from corro.runner.elastic.worker import HostUpdateResult


class HostDiscovery:
    """Knows the hosts there are."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The hosts that can be used now, with the number of processes for each. Called about once a second."""
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """A program that prints `host` or `host:slots` on each line. Hosts without a number have `slots`."""

    def __init__(self, discovery_script: str, slots: int | None = None) -> None:
        self.discovery_script = discovery_script
        self.slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        asked = subprocess.run(
            self.discovery_script, shell=True, stdout=subprocess.PIPE, text=True, check=False, timeout=60
        )
        if asked.returncode:
            raise RuntimeError(
                f"failed to execute the host discovery script {self.discovery_script!r}: it exited with "
                f"non-zero status {asked.returncode}."
            )
        return dict(self._host(line.strip()) for line in asked.stdout.splitlines() if line.strip())

    def _host(self, line: str) -> tuple[str, int]:
        name, colon, slots = line.rpartition(":")
        if not colon:
            if self.slots is None:
                raise ValueError(
                    f"the host discovery script printed {line!r} without a number of slots, and there is no default: "
                    f"print {line}:4, or give --slots-per-host."
                )
            return line, self.slots
        if not name or not slots.isdigit():
            raise ValueError(f"the host discovery script printed {line!r}, which is not a host with its slots.")
        return name, int(slots)


class FixedHosts(HostDiscovery):
    """Hosts that the program says; `set` changes them."""

    def __init__(self, available_hosts: Mapping[str, int]) -> None:
        self._hosts = dict(available_hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return self._hosts

    def set(self, available_hosts: Mapping[str, int]) -> None:
        self._hosts = dict(available_hosts)


class DiscoveredHosts:
    """The hosts at one moment, in the order in which ranks are dealt out: those that were there before come first."""

    def __init__(self, host_slots: Mapping[str, int], host_assignment_order: Sequence[str]) -> None:
        self.host_slots = dict(host_slots)
        self.host_assignment_order = list(host_assignment_order)

    @property
    def available_hosts(self) -> set[str]:
        return set(self.host_assignment_order)

    def get_slots(self, host: str) -> int:
        return self.host_slots.get(host, 0)

    def count_available_slots(self) -> int:
        return sum(self.get_slots(host) for host in self.host_assignment_order)


class HostManager:
    """Follows a discovery: what has changed since the last look, without hosts that are blacklisted.

    A blacklisted host stays so. With a `cooldown_range` (two numbers of seconds) it may come back, later each time.
    """

    def __init__(self, discovery: HostDiscovery, cooldown_range: Sequence[float] | None = None) -> None:
        if cooldown_range is not None:
            low, high = cooldown_range
            if not 1 <= low <= high <= 3600:
                raise ValueError(f"cooldown_range {low} {high}: from 1 to 3600 seconds, the smaller one first.")
        self._discovery = discovery
        self._cooldown = cooldown_range
        self._lock = threading.Lock()
        self._current = DiscoveredHosts({}, [])
        # Until when a host may not be used, and how often it was blacklisted.
        self._blacklist: dict[str, float] = {}
        self._times: dict[str, int] = {}

    @property
    def current_hosts(self) -> DiscoveredHosts:
        return self._current

    def update_available_hosts(self) -> int:
        """Looks anew. Gives a number of `HostUpdateResult`."""
        found = dict(self._discovery.find_available_hosts_and_slots())
        with self._lock:
            before = self._current
            usable = [host for host, slots in found.items() if slots > 0 and not self._is_blacklisted(host)]
            kept = [host for host in before.host_assignment_order if host in usable]
            now = DiscoveredHosts(found, kept + [host for host in usable if host not in kept])
            self._current = now
        change = HostUpdateResult.no_update
        for host in before.available_hosts | now.available_hosts:
            slots = [hosts.get_slots(host) if host in hosts.available_hosts else 0 for hosts in (before, now)]
            if slots[1] < slots[0]:
                change |= HostUpdateResult.removed
            elif slots[1] > slots[0]:
                change |= HostUpdateResult.added
        return change

    def blacklist(self, host: str) -> None:
        """Something failed there: it is not to be used."""
        with self._lock:
            if self._is_blacklisted(host):
                return
            self._times[host] = self._times.get(host, 0) + 1
            self._blacklist[host] = time.monotonic() + self._delay(self._times[host])
            order = [other for other in self._current.host_assignment_order if other != host]
            self._current = DiscoveredHosts(self._current.host_slots, order)

    def is_blacklisted(self, host: str) -> bool:
        with self._lock:
            return self._is_blacklisted(host)

    def _is_blacklisted(self, host: str) -> bool:
        return time.monotonic() < self._blacklist.get(host, 0.0)

    def _delay(self, times: int) -> float:
        if self._cooldown is None:
            return float("inf")
        low, high = self._cooldown
        return min(max(low * 2.0 ** min(times, 20) + random.random() * low, low), high)
