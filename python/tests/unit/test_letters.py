"""Letters of ranks, through their task to the launcher (`corro._tasks.post`). No other system is needed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from corro._tasks import channel as channels
from corro._tasks.messages import Kind
from corro._tasks.post import PostOffice, send
from corro._tasks.switchboard import Switchboard
from corro._tasks.task import Place

KEY = bytes(range(32))


class Launcher:
    """A switchboard, and the letters that have come to it."""

    def __init__(self) -> None:
        self.letters: list[bytes] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self.place = Place([listener.getsockname()], 5.0)
        self.board = Switchboard(listener, KEY, Kind("Ray", "actor", "node"), lambda: None, self.letters.append)
        self.board.start()


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.board.close()


def test_a_letter_has_arrived_when_send_returns(launcher: Launcher) -> None:
    office = PostOffice(launcher.place, KEY)
    for number in range(20):
        send(office.path, bytes([number]) * number)
        assert launcher.letters[-1] == bytes([number]) * number
    largest = os.urandom(channels.MOST)
    send(office.path, largest)
    assert launcher.letters[-1] == largest
    assert len(launcher.letters) == 21
    office.close()


def test_what_is_too_large_is_refused_before_it_is_sent(launcher: Launcher) -> None:
    office = PostOffice(launcher.place, KEY)
    with pytest.raises(ValueError, match="the limit is"):
        send(office.path, bytes(channels.MOST + 1))
    assert launcher.letters == []
    office.close()


@pytest.mark.parametrize("beginning", [b"", b"\0\0", b"\0\0\0\7abc", b"\xff\xff\xff\xffabc"])
def test_what_is_cut_short_does_not_go_on(launcher: Launcher, beginning: bytes) -> None:
    office = PostOffice(launcher.place, KEY)
    with socket.socket(socket.AF_UNIX) as rank:
        rank.settimeout(20)
        rank.connect(office.path)
        rank.sendall(beginning)
        rank.shutdown(socket.SHUT_WR)
        assert rank.recv(1) == b""
    assert launcher.letters == []
    # The office is open for the next one.
    send(office.path, b"x")
    assert launcher.letters == [b"x"]
    office.close()


def test_only_this_user_can_reach_an_office(launcher: Launcher) -> None:
    office = PostOffice(launcher.place, KEY)
    assert os.stat(os.path.dirname(office.path)).st_mode & 0o077 == 0
    office.close()
    with pytest.raises(FileNotFoundError):
        send(office.path, b"x")


def test_who_does_not_know_the_key_brings_no_letters(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corro._tasks.post._SECONDS", 0.5)
    office = PostOffice(launcher.place, bytes(32))
    with pytest.raises(OSError, match="can't be reached"):
        send(office.path, b"x")
    assert launcher.letters == []
    office.close()


def test_a_task_that_is_let_go_counts_no_more_and_is_not_lost(launcher: Launcher) -> None:
    import json
    import time

    channel = channels.connect(launcher.place.addresses, KEY, time.monotonic() + 5)
    hello = {"task": 3, "attempt": 0, "host": "here", "machine": "m", "place": "node"}
    channel.send(json.dumps(hello).encode())
    until = time.monotonic() + 20
    while not launcher.board.tasks():
        assert time.monotonic() < until, "the task is not known"
        time.sleep(0.01)
    launcher.board.let_go(3)
    assert launcher.board.tasks() == []
    channel.close()
    time.sleep(0.1)
    assert launcher.board.lost() == []
