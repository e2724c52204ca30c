"""Letters from ranks to the program that has started their job: a rank hands one to its task, which sends it on.

    rank  --Unix socket-->  task  --channel-->  switchboard  -->  driver

Whoever sends one waits until the launcher has it, so none is lost when the job ends right after.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import tempfile
import threading
import time
from contextlib import suppress

from corro._tasks import channel as channels
from corro._tasks.task import Place

__all__ = ["HELLO", "PostOffice", "send"]

# What a task says first on a connection that brings letters.
HELLO = "letters"
_HEAD = struct.Struct(">I")
# How long a letter may take to the launcher.
_SECONDS = 60.0


def send(path: str, letter: bytes) -> None:
    """From a rank, to the office of its task at `path`. `OSError` if the launcher does not get it."""
    if len(letter) > channels.MOST:
        raise ValueError(
            f"a message of {len(letter)} bytes is too long (the limit is {channels.MOST}): send numbers, not data."
        )
    with socket.socket(socket.AF_UNIX) as office:
        office.settimeout(_SECONDS)
        office.connect(path)
        office.sendall(_HEAD.pack(len(letter)) + letter)
        try:
            arrived = office.recv(1) == b"k"
        except TimeoutError:
            arrived = False
        if not arrived:
            raise OSError("the launcher of this job can't be reached by this rank's task.")


class PostOffice:
    """In a task, from its making to `close`. Only this user can reach it."""

    def __init__(self, place: Place, key: bytes) -> None:
        self._place = place
        self._key = key
        self._folder = tempfile.TemporaryDirectory(prefix="corro-post-")
        self.path = os.path.join(self._folder.name, "post")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen(64)
        threading.Thread(target=self._serve, daemon=True, name="corro-post").start()

    def _serve(self) -> None:
        while True:
            try:
                rank, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._take, args=(rank,), daemon=True, name="corro-post").start()

    def _take(self, rank: socket.socket) -> None:
        with rank, suppress(OSError):
            rank.settimeout(_SECONDS)
            arriving = rank.makefile("rb")
            head = arriving.read(_HEAD.size)
            length = _HEAD.unpack(head)[0] if len(head) == _HEAD.size else channels.MOST + 1
            letter = arriving.read(length) if length <= channels.MOST else None
            if letter is not None and len(letter) == length:
                self._send_on(letter)
                rank.sendall(b"k")

    def _send_on(self, letter: bytes) -> None:
        channel = channels.connect(self._place.addresses, self._key, time.monotonic() + _SECONDS)
        try:
            channel.send(json.dumps({HELLO: True}).encode())
            channel.send(letter)
            if channel.receive() is None:
                raise OSError("the launcher is gone")
        finally:
            channel.close()

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._folder.cleanup()
