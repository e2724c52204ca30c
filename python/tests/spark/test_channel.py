"""The connection between launcher and tasks, with friends, strangers and somebody in the middle."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from corro.spark import _channel

KEY = bytes(range(32))
SECONDS = 20.0

Servers = tuple[_channel.Server, "queue.Queue[_channel.Channel]"]


@pytest.fixture
def server() -> Iterator[Servers]:
    came: queue.Queue[_channel.Channel] = queue.Queue()
    opened = _channel.Server("127.0.0.1", KEY, came.put)
    opened.start()
    yield opened, came
    opened.close()


def connect(port: int, key: bytes = KEY, seconds: float = SECONDS) -> _channel._TasksEnd:
    return _channel.connect([("127.0.0.1", port)], key, time.monotonic() + seconds)


def test_messages_of_all_sizes_arrive_whole_both_ways(server: Servers) -> None:
    task = connect(server[0].port)
    launcher = server[1].get(timeout=SECONDS)
    assert task.peer() == "127.0.0.1"
    for length in (1, 31, 4096, _channel.MOST):
        message = os.urandom(length)
        task.send(message)
        assert launcher.receive() == message
        launcher.send(message)
        assert task.receive() == message
    with pytest.raises(ValueError, match="are the most"):
        task.send(bytes(_channel.MOST + 1))
    # The last words are heard, and then the end.
    task.send(b"goodbye")
    task.close()
    assert launcher.receive() == b"goodbye"
    assert launcher.receive() is None
    with pytest.raises(ConnectionError):
        [launcher.send(b"too late") for _ in range(100)]


def test_the_launcher_waits_for_a_task_that_takes_nothing(server: Servers) -> None:
    task = connect(server[0].port)
    launcher = server[1].get(timeout=SECONDS)
    sent = []

    def send() -> None:
        for number in range(200):
            launcher.send(bytes([number]) * 1000)
            sent.append(number)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    until = time.monotonic() + SECONDS
    while len(sent) < _channel._WINDOW and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(sent) == _channel._WINDOW
    assert [task.receive() for _ in range(200)] == [bytes([number]) * 1000 for number in range(200)]
    sender.join(SECONDS)
    assert len(sent) == 200


def test_the_end_of_the_launcher_ends_its_tasks(server: Servers) -> None:
    task = connect(server[0].port)
    server[1].get(timeout=SECONDS).send(b"end")
    server[0].close()
    assert task.receive() == b"end"
    assert task.receive() is None


def test_whoever_does_not_know_the_key_is_refused_on_both_sides(server: Servers) -> None:
    with pytest.raises(OSError, match="can't be reached from"):
        connect(server[0].port, b"x" * 32, seconds=1.0)
    assert server[1].empty()


def test_nothing_can_be_read_or_changed_on_the_way(server: Servers) -> None:
    seen: list[bytes] = []
    spoil = threading.Event()
    middle = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(1 << 16):
                seen.append(piece)
                sink.sendall(piece[:-1] + bytes([piece[-1] ^ 1]) if spoil.is_set() else piece)
        except OSError:
            pass

    def serve() -> None:
        one = middle.accept()[0]
        other = socket.create_connection(("127.0.0.1", server[0].port))
        threading.Thread(target=carry, args=(one, other), daemon=True).start()
        carry(other, one)

    threading.Thread(target=serve, daemon=True).start()
    task = connect(middle.getsockname()[1])
    launcher = server[1].get(timeout=SECONDS)
    secret = b"a secret that nobody else may know"
    task.send(secret)
    assert launcher.receive() == secret
    assert secret not in b"".join(seen)
    assert len(b"".join(seen)) > len(secret)
    spoil.set()
    task.send(secret)
    assert launcher.receive() is None
    middle.close()


def test_a_driver_that_can_t_be_reached_is_named() -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    address = closed.getsockname()
    closed.close()
    with pytest.raises(OSError, match=rf"can't be reached from .*127.0.0.1:{address[1]}"):
        _channel.connect([address], KEY, time.monotonic() + 0.3)
