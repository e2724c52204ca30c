"""Several hosts on one machine: network namespaces joined by a switch, with a limit on what each may send and receive.

Owns the namespaces, the switch's included: nothing of the machine's own network is touched, and they are deleted on every way out.
Used by compression.py, diloco.py and servers.py.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contestants import Unable
from link import INTERFACE, Limit, run

# Where rank 0 waits for the others.
PORT = 47200
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

    def ranks_on_each(self, argv: list[str], limit_s: float, per_host: int = 1) -> list[str]:
        """A Python script with its arguments as ranks on each host; what each rank prints, once all have ended well."""
        size, secret = len(self.names) * per_host, secrets.token_hex(32)
        # As torchrun sets them: rank 0 serves the rendezvous store itself.
        common = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": per_host, "OMP_NUM_THREADS": 1}
        common |= {"MASTER_ADDR": self.address(0), "MASTER_PORT": PORT, "CORRO_SECRET": secret, "CORRO_TIMEOUT": 300}
        ranks = []
        try:
            for number in range(size):
                host, local = divmod(number, per_host)
                # Namespaces share the machine's name and memory, so each rank is told the name of its host.
                own = {**common, "RANK": number, "LOCAL_RANK": local, "CORRO_HOSTNAME": f"h{host}"}
                words = ["env", *(f"{name}={value}" for name, value in own.items()), sys.executable, *argv]
                ranks.append(subprocess.Popen(self.command(host, words), stdout=subprocess.PIPE, text=True))
            give_up = time.monotonic() + limit_s
            said = [rank.communicate(timeout=max(0.0, give_up - time.monotonic()))[0] for rank in ranks]
        except subprocess.TimeoutExpired as error:
            raise Unable(f"{Path(argv[0]).name} was not done on all hosts within {limit_s:.0f} s") from error
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(rank.returncode for rank in ranks):
            raise Unable(f"ranks failed: {[rank.returncode for rank in ranks]}")
        return said

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
