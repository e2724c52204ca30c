"""Several hosts on one machine: network namespaces joined by a switch, with a limit on what each may send and receive.

Owns the namespaces, the switch's included: nothing of the machine's own network is touched, and they are deleted on every way out.
Used by compression.py and diloco.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from contestants import Unable
from link import INTERFACE, Limit, run

LIMITS = (
    Limit("25 Mbit/s", "25mbit", 25e6, "64kb", "50ms"),
    Limit("100 Mbit/s", "100mbit", 100e6, "64kb", "50ms"),
    Limit("1 Gbit/s", "1gbit", 1e9, "128kb", "20ms"),
    Limit("10 Gbit/s", "10gbit", 10e9, "256kb", "10ms"),
)


class Switch:
    """Hosts 0 to n - 1, up and joined."""

    def __init__(self, hosts: int) -> None:
        self.names = [f"corro-h{host}-{os.getpid()}" for host in range(hosts)]
        self.middle = f"corro-sw-{os.getpid()}"

    def address(self, host: int) -> str:
        return f"10.78.0.{host + 1}"

    def command(self, host: int, argv: list[str]) -> list[str]:
        """`argv`, to be run on a host."""
        return ["ip", "netns", "exec", self.names[host], *argv]

    def open(self) -> None:
        run("ip", "netns", "add", self.middle)
        run("ip", "-n", self.middle, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.middle, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            port = f"port{host}"
            run("ip", "netns", "add", name)
            run(
                "ip",
                "link",
                "add",
                INTERFACE,
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                port,
                "netns",
                self.middle,
            )
            run("ip", "-n", self.middle, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", name, "address", "add", f"{self.address(host)}/24", "dev", INTERFACE)
            run("ip", "-n", name, "link", "set", INTERFACE, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def limit(self, limit: Limit) -> None:
        """What each host may send (at its own end) and receive (at the switch's)."""
        shape = ["tbf", "rate", limit.rate, "burst", limit.burst, "latency", limit.latency]
        for host, name in enumerate(self.names):
            for where, device in ((name, INTERFACE), (self.middle, f"port{host}")):
                tc = ["tc", "-n", where, "qdisc"]
                subprocess.run([*tc, "del", "dev", device, "root"], capture_output=True, check=False)
                run(*tc, "add", "dev", device, "root", *shape)

    def sent_bytes(self, host: int) -> int:
        """What has left a host so far, as its interface counts."""
        path = f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"
        return int(subprocess.run(self.command(host, ["cat", path]), capture_output=True, text=True, check=True).stdout)

    def close(self) -> None:
        for name in [*self.names, self.middle]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextmanager
def hosts_on_a_switch(hosts: int) -> Iterator[Switch]:
    """The hosts, removed at the end; raises `Unable` with the reason where namespaces cannot be made."""
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            raise Unable(f"`{tool}` is missing (Debian and Ubuntu: package iproute2)")
    if os.geteuid() != 0:
        raise Unable("making network namespaces needs root")
    switch = Switch(hosts)
    try:
        switch.open()
        yield switch
    finally:
        switch.close()
