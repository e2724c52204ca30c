"""A connection between the launcher of a job and the tasks it lives in: both prove that they know the job's key, and nobody
on the way can read, change, repeat or drop a message unnoticed.

    client  ->  magic, client nonce
    client  <-  server nonce, HMAC(key, "server", nonces)
    client  ->  HMAC(key, "client", nonces)

Then messages, each as its length, its bytes under a keystream, and a MAC over its number and those bytes (encrypt, then
authenticate). Keys are derived from the job's key and both nonces, two for each direction, so they are fresh for each
connection; the keystream of a message is SHAKE-256 of its key and the message's number, which is never used twice. Only the
standard library is needed, since tasks run where nothing but Corro and its host is installed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["MOST", "Channel", "accept", "connect", "keep_alive"]

_MAGIC = b"corro-tasks-1\n"
_NONCE = 32
_TAG = 32
_HEAD = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
# The longest message. Whoever has more to say cuts it.
MOST = 1 << 20
# Whoever connects must have proved himself by then.
_HANDSHAKE_SECONDS = 10.0


class Channel:
    """Messages both ways. One thread may send while another receives; several may send."""

    def __init__(self, connection: socket.socket, secret: bytes, is_client: bool) -> None:
        self._socket = connection
        ours, theirs = (b"client", b"server") if is_client else (b"server", b"client")
        self._out = _Direction(secret, ours)
        self._in = _Direction(secret, theirs)
        self._sending = threading.Lock()

    def send(self, message: bytes) -> None:
        """Waits until it is on its way; `OSError` if the connection is broken."""
        if len(message) > MOST:
            raise ValueError(f"a message of {len(message)} bytes is too long: the limit is {MOST}.")
        with self._sending:
            body = self._out.seal(message)
            self._socket.sendall(_HEAD.pack(len(message)) + body)

    def receive(self) -> bytes | None:
        """The next message; None when the other side is gone. `OSError` if what came is not what was sent."""
        head = _read(self._socket, _HEAD.size)
        if head is None:
            return None
        (length,) = _HEAD.unpack(head)
        if length > MOST:
            raise OSError(f"a message of {length} bytes was announced, but the limit is {MOST}.")
        body = _read(self._socket, length + _TAG)
        return None if body is None else self._in.open(body)

    def peer(self) -> str:
        """The address of the other side."""
        return str(self._socket.getpeername()[0])

    def close(self) -> None:
        """Wakes whoever waits in `receive`, here and at the other side."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class _Direction:
    """One way through a channel: its keys, and how many messages have gone it."""

    def __init__(self, secret: bytes, name: bytes) -> None:
        self._stream = hmac.digest(secret, b"stream " + name, "sha256")
        self._mac = hmac.digest(secret, b"mac " + name, "sha256")
        self._count = 0

    def seal(self, message: bytes) -> bytes:
        hidden = self._mask(message)
        return hidden + self._next_tag(hidden)

    def open(self, body: bytes) -> bytes:
        hidden, tag = body[:-_TAG], body[-_TAG:]
        message = self._mask(hidden)
        if not hmac.compare_digest(self._next_tag(hidden), tag):
            raise OSError("a message was changed on its way: somebody is between the driver and this task.")
        return message

    def _mask(self, text: bytes) -> bytes:
        stream = hashlib.shake_256(self._stream + _NUMBER.pack(self._count)).digest(len(text))
        both = int.from_bytes(text, "little") ^ int.from_bytes(stream, "little")
        return both.to_bytes(len(text), "little")

    def _next_tag(self, hidden: bytes) -> bytes:
        tag = hmac.digest(self._mac, _NUMBER.pack(self._count) + hidden, "sha256")
        self._count += 1
        return tag


def connect(addresses: Sequence[tuple[str, int]], key: bytes, deadline: float) -> Channel:
    """To the first of the addresses where somebody knows the key. `deadline` is a `time.monotonic()`."""
    reasons: dict[str, str] = {}
    pause = 0.05
    while True:
        for host, port in addresses:
            left = deadline - time.monotonic()
            if left <= 0:
                told = "; ".join(f"{where}: {why}" for where, why in reasons.items()) or "there was no time to try"
                raise OSError(f"the driver can't be reached from {socket.gethostname()}: {told}.")
            try:
                return _prove(socket.create_connection((host, port), timeout=min(left, _HANDSHAKE_SECONDS)), key)
            except OSError as error:
                # The first reason says most: who has refused us may not answer a second time.
                reasons.setdefault(f"{host}:{port}", str(error))
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
        pause = min(2 * pause, 1.0)


def _prove(connection: socket.socket, key: bytes) -> Channel:
    try:
        nonce = os.urandom(_NONCE)
        connection.sendall(_MAGIC + nonce)
        answer = _read(connection, _NONCE + _TAG)
        if answer is None:
            raise OSError("it closed the connection")
        nonces = nonce + answer[:_NONCE]
        if not hmac.compare_digest(_proof(key, b"server", nonces), answer[_NONCE:]):
            raise OSError("whoever answers there does not know this job's key")
        connection.sendall(_proof(key, b"client", nonces))
        return _channel(connection, key, nonces, is_client=True)
    except BaseException:
        connection.close()
        raise


def accept(connection: socket.socket, key: bytes) -> Channel:
    """The server's side. `OSError` if the other side does not know the key; the connection is closed then."""
    try:
        connection.settimeout(_HANDSHAKE_SECONDS)
        hello = _read(connection, len(_MAGIC) + _NONCE)
        if hello is None or not hello.startswith(_MAGIC):
            raise OSError("this is not a task of a Corro job, or one of another release")
        nonce = os.urandom(_NONCE)
        nonces = hello[len(_MAGIC) :] + nonce
        connection.sendall(nonce + _proof(key, b"server", nonces))
        proof = _read(connection, _TAG)
        if proof is None or not hmac.compare_digest(_proof(key, b"client", nonces), proof):
            raise OSError("it does not know this job's key")
        return _channel(connection, key, nonces, is_client=False)
    except BaseException:
        connection.close()
        raise


def _channel(connection: socket.socket, key: bytes, nonces: bytes, is_client: bool) -> Channel:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(connection)
    return Channel(connection, hmac.digest(key, b"session" + nonces, "sha256"), is_client)


def keep_alive(connection: socket.socket) -> None:
    """A host that has vanished is noticed after half a minute, although nothing closes its connections."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)


def _proof(key: bytes, who: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, who + nonces, "sha256")


def _read(connection: socket.socket, length: int) -> bytes | None:
    """So many bytes; None if the other side is gone before."""
    parts = []
    while length:
        try:
            part = connection.recv(min(length, 1 << 16))
        except ConnectionError:
            return None
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
