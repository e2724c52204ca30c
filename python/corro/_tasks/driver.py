"""The driver's part of a job on Spark: starts the launcher's process and the Spark job, and follows both to the end."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from corro import _native
from corro.runner._results import interpret
from corro.runner.common.util.timeout import TimeoutException
from corro.runner.util.network import get_driver_ip, get_local_host_addresses
from corro._tasks.messages import Ended, Request
from corro.spark._spark_job import SparkJob, slots
from corro._tasks.task import Place

__all__ = ["Wanted", "run_job"]

# What the launcher may take to end all ranks, and the Spark job to follow.
_ENDING_SECONDS = 15.0
# How long Spark may take to say why a task is gone.
_SPARKS_WORD_SECONDS = 3.0
# Ranks are started by the Python of Spark's workers, which the task knows.
_SPARKS_PYTHON = ["/bin/sh", "-c", 'exec "$PYSPARK_PYTHON" -m corro.runner.worker']


@dataclass(frozen=True)
class Wanted:
    """A job: what, on how many tasks, and where its output goes."""

    name: str
    payload: bytes
    tasks: int
    fewest: int
    is_elastic: bool
    flags: Sequence[str]
    env: Mapping[str, str]
    nics: Sequence[str]
    start_timeout: float | None
    executable: str | None
    stdout: Any
    stderr: Any


def run_job(context: Any, wanted: Wanted) -> list[Any]:
    """Runs it to its end and gives the results by rank."""
    seconds = _start_timeout(wanted.start_timeout)
    listener, addresses = _listen(context, wanted.nics)
    key = os.urandom(32)
    woken = threading.Event()
    spark = SparkJob(context, wanted.tasks, Place(addresses, seconds), key, wanted.is_elastic, woken.set)
    with listener:
        launcher = _LauncherProcess(wanted, key, listener, woken)
    launcher.addresses = ", ".join(f"{host}:{port}" for host, port in addresses)
    try:
        spark.start()
        ended = _follow(context, wanted, spark, launcher, seconds)
    finally:
        # Also after Ctrl-C, or whatever else has come between.
        finished = launcher.end()
        if not finished or sys.exc_info()[0] is not None:
            spark.cancel()
        spark.finish(_ENDING_SECONDS)
    return interpret(ended.results, ended.failure, wanted.name)


def _follow(context: Any, wanted: Wanted, spark: SparkJob, launcher: _LauncherProcess, seconds: float) -> Ended:
    deadline = time.monotonic() + seconds
    told = False
    while launcher.ended is None:
        if not launcher.ready and time.monotonic() > deadline:
            raise TimeoutException(
                f"{wanted.name}: Spark has not started {wanted.fewest} tasks within {seconds:g} s; {slots(context)}. "
                "Give a smaller num_proc, wait for other stages and applications to end, or raise start_timeout. If a stage "
                f"of this job holds slots, its tasks can't reach the driver at {launcher.addresses}: open it to executors. "
                f"Timeout after {seconds:g} seconds."
            )
        if spark.over.is_set() and not told:
            told = True
            launcher.tell(spark.failure or "its tasks have ended")
        launcher.woken.wait(0.5)
        launcher.woken.clear()
    ended = launcher.ended
    if ended.failure is None:
        return ended
    if ended.lost:
        spark.over.wait(_SPARKS_WORD_SECONDS)
        ended = Ended(ended.results, _about_loss(ended, spark.failure), ended.lost)
    spark.cancel()
    return ended


def _about_loss(ended: Ended, sparks_word: str | None) -> tuple[str, int | None]:
    """Who was lost first, and what Spark says about it, unless a rank failed for a reason of its own."""
    assert ended.failure is not None
    text, rank = ended.failure
    if rank is not None:
        return text, rank
    index, lost_rank, host = ended.lost[0]
    who = f"rank {lost_rank} on {host}" if lost_rank is not None else f"a process on {host}"
    why = f"Spark says: {sparks_word}" if sparks_word else "its executor or Python worker was ended"
    return f"{who} was lost with Spark's task {index}: {why}\n    {text}", lost_rank


class _LauncherProcess:
    """`corro._tasks.launcher`, and threads that pass on what it writes and answers."""

    def __init__(self, wanted: Wanted, key: bytes, listener: socket.socket, woken: threading.Event) -> None:
        self.woken = woken
        self.ready = False
        self.addresses = ""
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

    def tell(self, text: str) -> None:
        with suppress(OSError):  # it is gone, which is seen elsewhere
            self._connection.send(text)

    def _listen(self) -> None:
        try:
            while self.ended is None:
                what, *rest = self._connection.recv()
                if what == "ready":
                    self.ready = True
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
        tasks=wanted.tasks,
        fewest=wanted.fewest,
        is_elastic=wanted.is_elastic,
        flags=wanted.flags,
        command=[wanted.executable, "-m", "corro.runner.worker"] if wanted.executable else _SPARKS_PYTHON,
        payload=wanted.payload,
        variables=[(name, str(value)) for name, value in wanted.env.items()],
    )


def _environment() -> dict[str, str]:
    """The launcher's own. Ranks have that of their tasks."""
    paths = [os.path.abspath(path) for path in sys.path if path and os.path.isdir(path)]
    # Without its launcher, and so without its driver, a job on Spark has nobody to work for.
    alone = {"CORRO_ELASTIC_ORPHAN_TIME": "0"}
    return {**alone, **os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _start_timeout(given: float | None) -> float:
    if given is not None:
        return float(given)
    return float(_native.setting("SPARK_START_TIMEOUT") or 600)


def _listen(context: Any, nics: Iterable[str]) -> tuple[socket.socket, list[tuple[str, int]]]:
    """A socket for tasks to connect to, and its addresses: first the one by which executors know the driver."""
    conf = context.getConf()
    known = conf.get("spark.driver.host", "localhost")
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
