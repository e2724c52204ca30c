"""The driver's part of a job in tasks: starts the launcher's process and the tasks, and follows both to the end."""

from __future__ import annotations

import ipaddress
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

from corro._tasks.messages import Ended, Kind, LetGo, Request
from corro._tasks.task import Place
from corro.runner._results import interpret
from corro.runner.common.util.timeout import TimeoutException
from corro.runner.util.network import get_driver_ip, get_local_host_addresses

__all__ = ["Calls", "Tasks", "Wanted", "run_job"]

# What the launcher may take to end all ranks, and the tasks to follow.
_ENDING_SECONDS = 15.0
# How long a system may take to say why a task is gone.
_WORD_SECONDS = 3.0


@dataclass(frozen=True)
class Wanted:
    """A job: what, on how many tasks, and where its output goes. `told` is called with letters of ranks (`post.send`)."""

    name: str
    kind: Kind
    payload: bytes
    command: Sequence[str]
    fewest: int
    most: int
    is_elastic: bool
    flags: Sequence[str]
    env: Mapping[str, str]
    nics: Sequence[str]
    start_timeout: float
    stdout: Any = None
    stderr: Any = None
    told: Callable[[bytes], None] | None = None


class Tasks(Protocol):
    """The tasks of a job, as their system runs them. `over` is set when no more will come, and `failure` says why."""

    @property
    def over(self) -> threading.Event: ...

    @property
    def failure(self) -> str | None: ...

    def start(self) -> None: ...

    def cancel(self) -> None:
        """Ends them, wherever they are."""

    def finish(self, seconds: float) -> None:
        """Waits for their end, so that what they hold is free again, and cancels them if that takes too long."""

    def too_few(self, fewest: int, seconds: float, addresses: str) -> str:
        """That there are not as many as are needed, why that may be, and what to do."""


@dataclass(frozen=True)
class Calls:
    """What tasks need to know: where the launcher is, the job's key, and what to call when they are over, or when one of
    them is to leave the job in peace.
    """

    launcher: Place
    key: bytes = field(repr=False)
    ended: Callable[[], None]
    let_go: Callable[[int], None]


def run_job(wanted: Wanted, driver: str, make_tasks: Callable[[Calls], Tasks]) -> list[Any]:
    """Runs it to its end and gives the results by rank. `driver` is the address by which the system knows this host."""
    listener, addresses = _listen(driver, wanted.nics)
    key = os.urandom(32)
    woken = threading.Event()
    with listener:
        launcher = _LauncherProcess(wanted, key, listener, woken)
    launcher.addresses = ", ".join(f"{host}:{port}" for host, port in addresses)
    try:
        tasks = make_tasks(Calls(Place(addresses, wanted.start_timeout), key, woken.set, launcher.let_go))
    except BaseException:
        launcher.end()
        raise
    try:
        tasks.start()
        ended = _follow(wanted, tasks, launcher)
    finally:
        # Also after Ctrl-C, or whatever else has come between.
        finished = launcher.end()
        if not finished or sys.exc_info()[0] is not None:
            tasks.cancel()
        tasks.finish(_ENDING_SECONDS)
    return interpret(ended.results, ended.failure, wanted.name)


def _follow(wanted: Wanted, tasks: Tasks, launcher: _LauncherProcess) -> Ended:
    seconds = wanted.start_timeout
    deadline = time.monotonic() + seconds
    said = False
    while launcher.ended is None:
        if not launcher.ready and time.monotonic() > deadline:
            why = tasks.too_few(wanted.fewest, seconds, launcher.addresses)
            raise TimeoutException(f"{wanted.name}: {why} Timeout after {seconds:g} seconds.")
        if tasks.over.is_set() and not said:
            said = True
            launcher.tell(tasks.failure or "they have ended")
        launcher.woken.wait(0.5)
        launcher.woken.clear()
        launcher.deliver()
    launcher.deliver()
    ended = launcher.ended
    if ended.failure is None:
        return ended
    if ended.lost:
        tasks.over.wait(_WORD_SECONDS)
        ended = Ended(ended.results, _about_loss(wanted.kind, ended, tasks.failure), ended.lost)
    tasks.cancel()
    return ended


def _about_loss(kind: Kind, ended: Ended, word: str | None) -> tuple[str, int | None]:
    """Who was lost first, and what the system says about it, unless a rank failed for a reason of its own."""
    assert ended.failure is not None
    text, rank = ended.failure
    if rank is not None:
        return text, rank
    index, lost_rank, host = ended.lost[0]
    who = f"rank {lost_rank} on {host}" if lost_rank is not None else f"a process on {host}"
    why = f"{kind.system} says: {word}" if word else f"its {kind.noun} or {kind.place} was ended"
    return f"{who} was lost with {kind.system}'s {kind.noun} {index}: {why}\n    {text}", lost_rank


class _LauncherProcess:
    """`corro._tasks.launcher`, and threads that pass on what it writes and answers."""

    def __init__(self, wanted: Wanted, key: bytes, listener: socket.socket, woken: threading.Event) -> None:
        self.woken = woken
        self.ready = False
        self.addresses = ""
        self._told = wanted.told
        self._telling = threading.Lock()
        self._letters: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.ended: Ended | None = None
        ours, theirs = socket.socketpair()
        os.set_inheritable(listener.fileno(), True)
        command = [sys.executable, "-m", "corro._tasks.launcher", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            pass_fds=(theirs.fileno(), listener.fileno()),
            start_new_session=True,  # Ctrl-C is the driver's to deal with
        )
        theirs.close()
        self._socket = ours
        self._connection = Connection(os.dup(ours.fileno()))
        self._connection.send(_request(wanted, key, listener))
        self._writers = [
            threading.Thread(target=_copy, args=(stream, sink), daemon=True)
            for stream, sink in (
                (self._process.stdout, sys.stdout if wanted.stdout is None else wanted.stdout),
                (self._process.stderr, sys.stderr if wanted.stderr is None else wanted.stderr),
            )
        ]
        for thread in (*self._writers, threading.Thread(target=self._listen, daemon=True)):
            thread.start()

    def tell(self, what: str | LetGo) -> None:
        with suppress(OSError), self._telling:  # it is gone, which is seen elsewhere
            self._connection.send(what)

    def let_go(self, index: int) -> None:
        self.tell(LetGo(index))

    def deliver(self) -> None:
        """Hands over the letters that have come, in the thread of whoever waits for the job."""
        while not self._letters.empty():
            letter = self._letters.get()
            if self._told is not None:
                self._told(letter)

    def _listen(self) -> None:
        try:
            while self.ended is None:
                what, *rest = self._connection.recv()
                if what == "ready":
                    self.ready = True
                elif what == "told":
                    self._letters.put(rest[0])
                else:
                    self.ended = rest[0]
                self.woken.set()
        except (EOFError, OSError):
            self.ended = Ended(failure=("the launcher's process was ended", None))
        except Exception as error:
            self.ended = Ended(failure=(f"the launcher's answer can't be read: {error}", None))
        self._connection.close()
        self.woken.set()

    def end(self) -> bool:
        """Ends the job if it runs. Whether it had come to its end by itself."""
        finished = self.ended is not None
        # Nobody is there to work for: it ends what it has started, and says so.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._writers:
            thread.join(_ENDING_SECONDS)
        self._socket.close()
        return finished


def _request(wanted: Wanted, key: bytes, listener: socket.socket) -> Request:
    return Request(
        key=key,
        listener=listener.fileno(),
        kind=wanted.kind,
        fewest=wanted.fewest,
        most=wanted.most,
        is_elastic=wanted.is_elastic,
        flags=wanted.flags,
        command=wanted.command,
        payload=wanted.payload,
        variables=[(name, str(value)) for name, value in wanted.env.items()],
    )


def _environment() -> dict[str, str]:
    """The launcher's own. Ranks have that of their tasks."""
    paths = [os.path.abspath(path) for path in sys.path if path and os.path.isdir(path)]
    # Without its launcher, and so without its driver, such a job has nobody to work for.
    alone = {"CORRO_ELASTIC_ORPHAN_TIME": "0"}
    return {**alone, **os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _listen(known: str, nics: Iterable[str]) -> tuple[socket.socket, list[tuple[str, int]]]:
    """A socket for tasks to connect to, and its addresses: first the one by which the system knows the driver."""
    named = list(nics)
    if named:
        hosts = [get_driver_ip([nic]) for nic in named]
    else:
        others = [address for address in get_local_host_addresses() if not ipaddress.ip_address(address).is_loopback]
        hosts = [known] if _is_loopback(known) else list(dict.fromkeys([known, *others]))
    only = hosts[0] if len(hosts) == 1 and (named or _is_loopback(known)) else ""
    family = socket.AF_INET6 if ":" in only else socket.AF_INET
    listener = socket.create_server((only, 0), family=family, backlog=1024)
    port = listener.getsockname()[1]
    return listener, [(host, port) for host in hosts]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except OSError:
        return False


def _copy(stream: Any, sink: Any) -> None:
    """What comes from a pipe into a file-like object, of text or of bytes."""
    takes_bytes = False
    while piece := stream.read1(1 << 16):
        try:
            sink.write(piece if takes_bytes else piece.decode(errors="replace"))
        except TypeError:
            takes_bytes = True
            sink.write(piece)
        except ValueError:
            continue  # closed: the job goes on
        if hasattr(sink, "flush"):
            sink.flush()
