"""Connections between the launcher of a job on Spark and its tasks, over which whole messages go both ways.

Underneath is the transport that ranks have, with its TLS: both sides prove that they know the job's key, and nobody on the
way can read, change, repeat or drop a message unnoticed. Here messages become calls that wait. A task answers each message
with an empty one, so that the launcher never has more than a few on their way to it: what a rank is given may be large.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from corro import _native

__all__ = ["MOST", "Channel", "Server", "connect"]

# The longest message. Whoever has more to say cuts it.
MOST = 1 << 20
# How many messages may be on their way to a task.
_WINDOW = 32
# How often a thread that waits looks whether its connection was closed here.
_LOOK_SECONDS = 0.5
# How long one attempt to reach the driver may take; its name may have got another address by the next.
_ATTEMPT_SECONDS = 20.0


class Channel(Protocol):
    """Messages both ways. One thread may send while another receives; several may send."""

    def send(self, message: bytes) -> None:
        """Waits until it is on its way; `OSError` if the connection is broken."""

    def receive(self) -> bytes | None:
        """The next message; None when the other side is gone, or the channel was closed here."""

    def close(self) -> None:
        """Wakes whoever waits in `receive`, here and at the other side."""


class _TasksEnd:
    """A task's end."""

    def __init__(self, client: _native.MessageClient) -> None:
        self._client = client
        self._closed = False

    def send(self, message: bytes) -> None:
        self._client.say(message)

    def receive(self) -> bytes | None:
        with suppress(ConnectionError):
            while not self._closed:
                message = self._client.hear(_LOOK_SECONDS)
                if message is not None:
                    self._client.say(b"")
                    return message
        return None

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def peer(self) -> str:
        """The driver's address, as this task has reached it."""
        return self._client.host


class _LaunchersEnd:
    """The launcher's end of the connection `number`."""

    def __init__(self, server: _native.MessageServer, number: int) -> None:
        self._server = server
        self._number = number
        self._arrived: queue.Queue[bytes | None] = queue.Queue(maxsize=_WINDOW)
        self._room = threading.Semaphore(_WINDOW)
        self._over = threading.Event()

    def send(self, message: bytes) -> None:
        while not self._room.acquire(timeout=_LOOK_SECONDS):
            if self._over.is_set():
                break
        if self._over.is_set():
            raise ConnectionError("the task is gone")
        self._server.tell(self._number, message)

    def receive(self) -> bytes | None:
        while True:
            try:
                return self._arrived.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if self._over.is_set():
                    return None

    def close(self) -> None:
        self._over.set()
        self._server.end(self._number)

    def take(self, message: bytes) -> None:
        """What has come. Waits while too much of it is left: then the task waits, too."""
        if not message:
            self._room.release()
            return
        while not self._over.is_set():
            try:
                self._arrived.put(message, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return

    def lose(self) -> None:
        """The other side is gone. What has come before is still received."""
        self._over.set()
        with suppress(queue.Full):
            self._arrived.put_nowait(None)


class Server:
    """The launcher's side: `serve` is called, in a thread of its own, with each channel of somebody who knows the key."""

    def __init__(self, host: str, key: bytes, serve: Callable[[Channel], None]) -> None:
        self._server = _native.MessageServer(host, key)
        self.port = self._server.port
        self._serve = serve
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="corro-spark").start()

    def _run(self) -> None:
        channels: dict[int, _LaunchersEnd] = {}
        while not self._closed:
            event = self._server.next(_LOOK_SECONDS)
            if event is None:
                continue
            number, what, message = event
            if what == "came":
                channels[number] = _LaunchersEnd(self._server, number)
                threading.Thread(target=self._serve, args=(channels[number],), daemon=True, name="corro-spark").start()
            elif what == "gone":
                channels.pop(number).lose()
            elif message is not None:
                channels[number].take(message)

    def close(self) -> None:
        """Ends all connections, after what was sent is on its way."""
        self._closed = True
        self._server.close()


def connect(addresses: Sequence[tuple[str, int]], key: bytes, deadline: float) -> _TasksEnd:
    """To the first of the addresses where somebody knows the key. `deadline` is a `time.monotonic()`."""
    reason = "there was no time to try"
    while (left := deadline - time.monotonic()) > 0:
        found, unknown = _look_up(addresses)
        try:
            return _TasksEnd(_native.MessageClient(found, key, min(left, _ATTEMPT_SECONDS)))
        except ConnectionError as error:
            reason = "; ".join([str(error), *unknown])
        time.sleep(max(0.0, min(0.2, deadline - time.monotonic())))
    raise OSError(f"the driver can't be reached from {socket.gethostname()}: {reason}.")


def _look_up(addresses: Sequence[tuple[str, int]]) -> tuple[list[tuple[str, int]], list[str]]:
    """Numbers in place of names, and which names nobody knows here."""
    found: dict[tuple[str, int], None] = {}
    unknown = []
    for host, port in addresses:
        try:
            for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                found[(str(place[0]), port)] = None
        except OSError as error:
            unknown.append(f"{host}: {error}")
    return list(found), unknown
