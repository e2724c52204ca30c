"""Two hosts on one machine: two network namespaces joined by a veth pair, with or without a limit on its rate.

Owns the namespaces: both ends of the pair are made inside them, so nothing of the machine's own network is touched, and
they are deleted on every way out. Also measures what plain TCP can carry over the link. Used by two_hosts.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contestants import Unable

INTERFACE = "corro0"
ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}


@dataclass(frozen=True)
class Limit:
    """A rate for both ends. `burst` is what tbf lets through at full speed after a pause; `latency` bounds its queue.

    The burst must hold a 64 KiB segment as the kernel hands it down, or tbf cuts it up; and it must bridge the timer's
    lateness (at 10 Gbit/s, 256 KiB are 0.2 ms). Much more of it would let a whole message pass above the rate.
    """

    name: str
    rate: str = ""
    bits_per_s: float = 0.0
    burst: str = ""
    latency: str = ""

    def text(self) -> str:
        if not self.rate:
            return "no tbf on either end"
        return f"tbf rate {self.rate} burst {self.burst} latency {self.latency} on both ends"


LIMITS = (
    Limit("1 Gbit/s", "1gbit", 1e9, "128kb", "20ms"),
    Limit("10 Gbit/s", "10gbit", 10e9, "256kb", "10ms"),
    Limit("no limit"),
)


class Link:
    """The namespaces `a` and `b`, up and joined."""

    def __init__(self) -> None:
        self.names = {end: f"corro-{end}-{os.getpid()}" for end in ADDRESSES}

    def command(self, end: str, argv: list[str]) -> list[str]:
        """`argv`, to be run on host `end`."""
        return ["ip", "netns", "exec", self.names[end], *argv]

    def open(self) -> None:
        for name in self.names.values():
            run("ip", "netns", "add", name)
        a, b = self.names["a"], self.names["b"]
        run("ip", "link", "add", INTERFACE, "netns", a, "type", "veth", "peer", "name", INTERFACE, "netns", b)
        for end, name in self.names.items():
            run("ip", "-n", name, "address", "add", f"{ADDRESSES[end]}/24", "dev", INTERFACE)
            run("ip", "-n", name, "link", "set", INTERFACE, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def limit(self, limit: Limit) -> None:
        """Sets or lifts the limit on both ends; open connections live on."""
        for name in self.names.values():
            tc = ["tc", "-n", name, "qdisc"]
            subprocess.run([*tc, "del", "dev", INTERFACE, "root"], capture_output=True, check=False)
            if limit.rate:
                shape = ["rate", limit.rate, "burst", limit.burst, "latency", limit.latency]
                run(*tc, "add", "dev", INTERFACE, "root", "tbf", *shape)

    def close(self) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unable(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")


@contextmanager
def joined_hosts() -> Iterator[Link]:
    """The link, removed at the end; raises `Unable` with the reason where namespaces cannot be made."""
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            raise Unable(f"`{tool}` is missing (Debian and Ubuntu: package iproute2)")
    if os.geteuid() != 0:
        raise Unable("making network namespaces needs root")
    link = Link()
    try:
        link.open()
        yield link
    finally:
        link.close()


def tcp_ceiling(link: Link, both_ways: bool) -> float:
    """The best of three trials: a ceiling, not an average."""
    return max(tcp_rate(link, both_ways) for _ in range(3))


def tcp_rate(link: Link, both_ways: bool, seconds: float = 0.7) -> float:
    """Bit/s of payload one plain TCP connection carries from a to b (or the slower way, when both send at once)."""
    script = [sys.executable, str(Path(__file__).resolve().parent / "peers" / "tcp_copy.py")]
    tail = [ADDRESSES["b"], str(seconds), "both" if both_ways else "one"]
    server = subprocess.Popen(
        link.command("b", [*script, "listen", *tail]), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline().strip() != "listening":
            raise Unable("the TCP probe could not listen")
        argv = link.command("a", [*script, "connect", *tail])
        client = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 30, check=False)
        if client.returncode:
            raise Unable(f"the TCP probe failed: {client.stderr.strip()[-200:]}")
        rates = [float(word) for word in (client.stdout + " " + server.communicate(timeout=30)[0]).split()]
        return min(rate for rate in rates if rate > 0)
    except subprocess.TimeoutExpired as error:
        raise Unable("the TCP probe hung") from error
    finally:
        server.kill()
        server.wait()
