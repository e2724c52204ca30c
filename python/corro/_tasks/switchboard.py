"""Where the tasks of a job call in, and where the launcher's relays are joined to the agents that run in them.

    relay  --Unix socket-->  switchboard  <--channels--  task: one connection for orders, one for each agent and letter

Owns the connections and their threads. Decides nothing about ranks: who is there is told by `tasks`, and whoever waits for a
change is woken.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corro import _native
from corro._tasks import channel as channels
from corro._tasks import relay as relays
from corro._tasks.messages import Kind
from corro._tasks.post import HELLO as LETTERS

__all__ = ["Switchboard", "Task"]

# How long a task that was asked for an agent may take to connect.
_AGENT_SECONDS = 20.0


@dataclass(eq=False)
class Task:
    """A task that has called in. `name` is never used for another, and `host` is its machine's name in this job."""

    index: int
    attempt: int
    host: str
    place: str
    channel: channels.Channel
    lost_at: float | None = None
    leaving: bool = False
    ended: bool = False

    @property
    def name(self) -> str:
        return f"task{self.index}.{self.attempt}"

    @property
    def address(self) -> str:
        """What the launcher calls it: an account on a machine, so that it counts as a place of its own."""
        return f"{self.name}@{self.host}"

    def order(self, **what: Any) -> None:
        self.channel.send(json.dumps(what).encode())


@dataclass
class _Awaited:
    """An agent's connection that a relay waits for."""

    came: threading.Event = field(default_factory=threading.Event)
    channel: channels.Channel | None = None


class Switchboard:
    """Listens from `start` to `close`. In any thread, `changed` is called whenever a task has come or is gone, and `told`
    with the letters of ranks.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        kind: Kind,
        changed: Callable[[], None],
        told: Callable[[bytes], None],
    ) -> None:
        self._key = key
        self._kind = kind
        self._changed = changed
        self._told = told
        self._lock = threading.Lock()
        # Held while somebody is told of a change, so that nobody is once all is over.
        self._telling = threading.Lock()
        self._tasks: dict[int, Task] = {}
        self._lost: list[Task] = []
        self._machines: dict[str, str] = {}
        self._agents: dict[int, _Awaited] = {}
        self._numbers = itertools.count()
        self._closing = False
        self._folder = tempfile.TemporaryDirectory(prefix="corro-tasks-")  # for its user only
        self._relays = socket.socket(socket.AF_UNIX)
        self._relays.bind(os.path.join(self._folder.name, "relays"))
        self._relays.listen(1024)
        self._listener = listener

    def start(self) -> None:
        """From now on tasks are let in, and `changed` is called."""
        for server, serve in ((self._listener, self._greet), (self._relays, self._join)):
            _thread(self._accept, server, serve)

    def tasks(self) -> list[Task]:
        """Those that are there to stay, by index."""
        with self._lock:
            return sorted((task for task in self._tasks.values() if not task.leaving), key=lambda task: task.index)

    def let_go(self, index: int) -> None:
        """A task counts no more. Its agents stay until their ranks have left."""
        with self._lock:
            if index in self._tasks:
                self._tasks[index].leaving = True
        self._tell()

    def lost(self) -> list[Task]:
        """Those that are gone although nobody had told them to end, first ones first."""
        with self._lock:
            return list(self._lost)

    def folder(self) -> Path:
        """A folder that only this user can read, and that is gone with the switchboard."""
        return Path(self._folder.name)

    def remote_shell(self) -> str:
        """A program for `--remote-shell`."""
        path = self.folder() / "shell"
        relay = [sys.executable, "-I", "-S", relays.__file__, os.path.join(self._folder.name, "relays")]
        path.write_text(f'#!/bin/sh\nexec {shlex.join(relay)} "$1"\n', encoding="utf-8")
        path.chmod(0o700)
        return str(path)

    def close(self) -> None:
        """Tells all tasks to end, and takes no more."""
        with self._telling, self._lock:
            self._closing = True
            tasks = list(self._tasks.values())
        for task in tasks:
            task.ended = True
            with suppress(OSError):  # gone by itself
                task.order(do="end")
        for server in (self._listener, self._relays):
            server.close()
        self._folder.cleanup()

    # Tasks.

    def _accept(self, server: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return  # closed
            _thread(serve, connection)

    def _greet(self, connection: socket.socket) -> None:
        try:
            peer = connection.getpeername()[0]
            channel = channels.accept(connection, self._key)
            first = channel.receive()
        except OSError as error:
            self._say(f"refused a connection of {peer}: {error}")
            return
        hello = json.loads(first) if first is not None else {}
        if "agent" in hello:
            self._take_agent(int(hello["agent"]), channel)
        elif LETTERS in hello:
            self._take_letter(channel)
        elif "task" in hello:
            self._follow(self._take_task(hello, channel))
        else:
            channel.close()

    def _take_task(self, hello: dict[str, Any], channel: channels.Channel) -> Task:
        with self._lock:
            host = self._machine(str(hello["host"]), str(hello["machine"]))
            task = Task(int(hello["task"]), int(hello["attempt"]), host, str(hello["place"]), channel)
            before = self._tasks.get(task.index)
            if before is not None and before.attempt > task.attempt:
                channel.close()
                return task
            self._tasks[task.index] = task
        if before is not None:
            before.channel.close()
        self._tell()
        return task

    def _tell(self) -> None:
        with self._telling:
            if not self._closing:
                self._changed()

    def _machine(self, name: str, digest: str) -> str:
        """A name for a machine, or a container: another one of the same name gets a number behind it."""
        if digest not in self._machines:
            taken = set(self._machines.values())
            others = (f"{name}-{number}" for number in itertools.count(2))
            self._machines[digest] = next(one for one in itertools.chain([name], others) if one not in taken)
        return self._machines[digest]

    def _follow(self, task: Task) -> None:
        """Until the task is gone. It says nothing more after its hello."""
        try:
            while task.channel.receive() is not None:
                pass
        except OSError as error:
            self._say(f"{task.name} on {task.host}: {error}")
        task.channel.close()
        with self._lock:
            task.lost_at = time.monotonic()
            if self._tasks.get(task.index) is task:
                del self._tasks[task.index]
                if not task.ended and not task.leaving:
                    self._lost.append(task)
        self._tell()

    def _take_letter(self, channel: channels.Channel) -> None:
        with suppress(OSError):  # whoever has sent it is told so
            letter = channel.receive()
            if letter is not None:
                self._told(letter)
                channel.send(b"")
        channel.close()

    # Relays and agents.

    def _take_agent(self, number: int, channel: channels.Channel) -> None:
        with self._lock:
            awaited = self._agents.pop(number, None)
        if awaited is None:
            channel.close()
            return
        awaited.channel = channel
        awaited.came.set()

    def _join(self, relay: socket.socket) -> None:
        """Joins a relay to an agent in the task that it names."""
        address = relay.makefile("rb").readline().decode().strip()
        task = next((task for task in self.tasks() if task.address == address), None)
        agent = self._agent(task) if task is not None else None
        if task is None or agent is None:
            _pass(relay, relays.ERROR, f"{self._noun()} {address} is gone\n".encode())
            relay.close()
            return
        _thread(self._pass_orders, relay, agent)
        try:
            while (report := agent.receive()) is not None:
                _pass(relay, report[:1], report[1:])
        except OSError as error:
            self._say(f"{task.name} on {task.host}: {error}")
        agent.close()
        if not task.ended and not task.leaving:
            where = f"{self._noun()} {task.index} on {task.host} ({self._kind.place} {task.place})"
            _pass(relay, relays.ERROR, f"{where} is gone, or has lost its connection to the driver\n".encode())
        relay.close()

    def _agent(self, task: Task) -> channels.Channel | None:
        awaited = _Awaited()
        with self._lock:
            number = next(self._numbers)
            self._agents[number] = awaited
        try:
            task.order(do="agent", number=number)
        except OSError:
            return None
        until = time.monotonic() + _AGENT_SECONDS
        while not awaited.came.wait(0.1):
            if task.lost_at is not None or time.monotonic() > until:
                return None
        return awaited.channel

    def _noun(self) -> str:
        return f"{self._kind.system}'s {self._kind.noun}"

    def _say(self, text: str) -> None:
        _native.log_warning(f"{self._kind.system}: {text}")

    def _pass_orders(self, relay: socket.socket, agent: channels.Channel) -> None:
        try:
            while order := relay.recv(1 << 16):
                agent.send(order)
            agent.send(b"")  # the launcher has no more orders: the agent's standard input ends
        except OSError:
            agent.close()


def _pass(relay: socket.socket, kind: bytes, text: bytes) -> None:
    with suppress(OSError):  # the launcher has let it go
        relay.sendall(kind + len(text).to_bytes(4, "big") + text)


def _thread(target: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=target, args=args, daemon=True, name="corro-tasks").start()
