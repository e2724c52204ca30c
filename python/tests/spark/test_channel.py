"""The connection between launcher and tasks, with friends, strangers and somebody in the middle."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import pytest

from corro._tasks import channel as channels

KEY = bytes(range(32))


def pair(key: bytes = KEY) -> tuple[channels.Channel, channels.Channel]:
    """A client's channel and a server's."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[channels.Channel] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            accepted.append(channels.accept(listener.accept()[0], KEY))

    server = threading.Thread(target=serve)
    server.start()
    try:
        client = channels.connect([listener.getsockname()], key, time.monotonic() + 2)
    finally:
        listener.close()
        server.join()
    return client, accepted[0]


def test_messages_of_all_sizes_arrive_whole_both_ways() -> None:
    client, server = pair()
    for length in (0, 1, 31, 4096, channels.MOST):
        message = os.urandom(length)
        sender = threading.Thread(target=client.send, args=(message,))
        sender.start()
        assert server.receive() == message
        sender.join()
        server.send(message[:100])
        assert client.receive() == message[:100]
    client.close()
    assert server.receive() is None


def test_whoever_does_not_know_the_key_is_refused_and_told_so() -> None:
    with pytest.raises(OSError, match="does not know this job's key"):
        pair(b"x" * 32)


def test_nothing_can_be_read_changed_repeated_or_left_out_on_the_way() -> None:
    secret = b"s" * 32
    for attack in ("nothing", "changed", "repeated", "left out"):
        one, wire = socket.socketpair()
        sender = channels.Channel(one, secret, is_client=True)
        frames = []
        for message in (b"the first message", b"the second message"):
            sender.send(message)
            frames.append(wire.recv(1 << 16))
            assert message not in frames[-1]
        away, there = socket.socketpair()
        receiver = channels.Channel(there, secret, is_client=False)
        if attack == "changed":
            frames[0] = frames[0][:6] + bytes([frames[0][6] ^ 1]) + frames[0][7:]
        away.sendall({"repeated": frames[0] * 2, "left out": frames[1]}.get(attack, b"".join(frames)))
        if attack == "nothing":
            assert [receiver.receive(), receiver.receive()] == [b"the first message", b"the second message"]
            continue
        with pytest.raises(OSError, match="changed on its way"):
            [receiver.receive() for _ in range(2)]


def test_a_length_that_is_too_long_is_refused_before_it_is_read() -> None:
    away, there = socket.socketpair()
    away.sendall((1 << 31).to_bytes(4, "big"))
    with pytest.raises(OSError, match="the limit is"):
        channels.Channel(there, KEY, is_client=False).receive()


def test_a_stranger_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_HANDSHAKE_SECONDS", 0.2)
    _silent, there = socket.socketpair()
    with pytest.raises(TimeoutError):
        channels.accept(there, KEY)


def test_a_driver_that_can_t_be_reached_is_named() -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    address = closed.getsockname()
    closed.close()
    with pytest.raises(OSError, match=rf"can't be reached from .*127.0.0.1:{address[1]}"):
        channels.connect([address], KEY, time.monotonic() + 0.3)
