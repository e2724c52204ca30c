"""What runs in a task: it calls the launcher, and starts the agents that the launcher asks for, whose ranks are
thus this task's children.

The agent (`corro agent`) ends its ranks when its standard input closes. So nothing is left when this process is killed,
whoever does it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from corro._command import program
from corro._tasks import channel as channels
from corro._tasks import relay as relays
from corro.runner.common.util.host_hash import host_hash

__all__ = ["Identity", "Place", "modules", "serve"]

# An agent whose standard input has closed ends its ranks within this time, or is killed.
_GOODBYE_SECONDS = 8.0


@dataclass(frozen=True)
class Place:
    """Where the launcher is, and how long it may take to reach it. The key is not here: it takes a way of its own."""

    addresses: Sequence[tuple[str, int]]
    seconds: float


@dataclass(frozen=True)
class Identity:
    """Which task this is, for the how manieth time, and where its system says that it is."""

    index: int
    attempt: int
    place: str


def serve(launcher: Place, key: bytes, who: Identity, environment: Mapping[str, str]) -> None:
    """Until the launcher says that the job is over; `RuntimeError` if it does not. Ranks start with this environment."""
    channel = channels.connect(launcher.addresses, key, time.monotonic() + launcher.seconds)
    hello = {
        "task": who.index,
        "attempt": who.attempt,
        "host": socket.gethostname(),
        "machine": host_hash(),
        "place": who.place,
    }
    channel.send(json.dumps(hello).encode())
    agents: list[_Agent] = []
    try:
        while (order := channel.receive()) is not None:
            what: dict[str, Any] = json.loads(order)
            if what["do"] == "end":
                return
            agents.append(_Agent(launcher, key, int(what["number"]), channel.peer(), environment))
        raise RuntimeError("the connection to Corro's launcher on the driver is gone: the driver may have been ended.")
    finally:
        channel.close()
        for agent in agents:
            agent.end()


class _Agent:
    """`corro agent`, its standard input and output joined to a channel of its own."""

    def __init__(self, launcher: Place, key: bytes, number: int, driver: str, environment: Mapping[str, str]) -> None:
        self._channel = channels.connect(launcher.addresses, key, time.monotonic() + launcher.seconds)
        self._channel.send(json.dumps({"agent": number}).encode())
        command = [program(), "agent", f"--in-task={driver}"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, bufsize=0)
        readers = [
            threading.Thread(target=self._pass_reports, args=(stream, kind), daemon=True)
            for stream, kind in ((self._process.stdout, relays.OUTPUT), (self._process.stderr, relays.ERROR))
        ]
        threading.Thread(target=self._pass_orders, daemon=True).start()
        threading.Thread(target=self._finish, args=(readers,), daemon=True).start()

    def _pass_orders(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(OSError):
            while order := self._channel.receive():
                left = memoryview(order)
                while left:
                    left = left[stdin.write(left) :]
        with suppress(OSError):
            stdin.close()

    def _pass_reports(self, stream: Any, kind: bytes) -> None:
        with suppress(OSError):
            while text := stream.read(1 << 16):
                self._channel.send(kind + text)

    def _finish(self, readers: list[threading.Thread]) -> None:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        self._channel.close()

    def end(self) -> None:
        """Waits for its end; it is asked to come to it by now, since its channel or the launcher's part of it is closed."""
        self._channel.close()
        try:
            self._process.wait(_GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def modules() -> dict[str, str]:
    """The variable by which ranks find what this process can import."""
    paths = [os.path.abspath(path) for path in sys.path if path]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
