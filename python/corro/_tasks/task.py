"""What runs in a task of Spark: it calls the launcher, and starts the agents that the launcher asks for, whose ranks are
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from corro._command import program
from corro.runner.common.util.host_hash import host_hash
from corro._tasks import channel as channels
from corro._tasks import relay as relays

__all__ = ["Place", "serve"]

# An agent whose standard input has closed ends its ranks within this time, or is killed.
_GOODBYE_SECONDS = 8.0


@dataclass(frozen=True)
class Place:
    """Where the launcher is, and how long it may take to reach it. The key is not here: see `_spark_job`."""

    addresses: Sequence[tuple[str, int]]
    seconds: float


def serve(place: Place, key: bytes, index: int) -> None:
    """Until the launcher says that the job is over; `RuntimeError` if it does not."""
    from pyspark import TaskContext

    context = TaskContext.get()
    channel = channels.connect(place.addresses, key, time.monotonic() + place.seconds)
    hello = {
        "task": index,
        "attempt": context.attemptNumber() if context is not None else 0,
        "host": socket.gethostname(),
        "machine": host_hash(),
        "executor": _executor(),
    }
    channel.send(json.dumps(hello).encode())
    environment = _environment(_devices(context))
    agents: list[_Agent] = []
    try:
        while (order := channel.receive()) is not None:
            what: dict[str, Any] = json.loads(order)
            if what["do"] == "end":
                return
            agents.append(_Agent(place, key, int(what["number"]), channel.peer(), environment))
        raise RuntimeError("the connection to Corro's launcher on the driver is gone: the driver may have been ended.")
    finally:
        channel.close()
        for agent in agents:
            agent.end()


class _Agent:
    """`corro agent`, its standard input and output joined to a channel of its own."""

    def __init__(self, place: Place, key: bytes, number: int, driver: str, environment: dict[str, str]) -> None:
        self._channel = channels.connect(place.addresses, key, time.monotonic() + place.seconds)
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


def _executor() -> str:
    """What Spark calls this executor, as far as that is known here: by the end of the name of its folder."""
    return os.path.basename(os.getcwd())


def _devices(context: Any) -> list[str]:
    """The GPUs that Spark has given to this task."""
    resources = context.resources() if context is not None else {}
    return list(resources["gpu"].addresses) if "gpu" in resources else []


def _environment(devices: list[str]) -> dict[str, str]:
    """What ranks start with: what this task has, and its ways to find modules (`--py-files` among them)."""
    paths = [os.path.abspath(path) for path in sys.path if path]
    ours = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYSPARK_PYTHON": sys.executable}
    given = {"CORRO_SPARK_DEVICES": ",".join(devices)} if devices else {}
    # Between a worker of Spark and its JVM; ranks are neither.
    private = ("PYTHON_WORKER_FACTORY_", "PYTHON_UNIX_DOMAIN_", "SPARK_AUTH_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(private)}
    return {**own, **ours, **given}
