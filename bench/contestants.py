"""Contestants: how each is started, asked and ended.

Owns the processes of the benchmark. A contestant is a group of ranks, one of which speaks the line protocol of
bench/README.md on its stdin and stdout; it sleeps between commands. Never decides what to measure (measure.py) or how
to show it (report.py). Used by both drivers.

Everything started here is ended here, by process id: the tree under each started process is read from /proc first,
since mpiexec moves its ranks into process groups of their own.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
VENV = ROOT / ".venv-bench"
PYTHON = VENV / "bin" / "python"
CORRO = ROOT / "target" / "release" / "corro-rounds"
START_LIMIT_S = 90.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Unable(Exception):
    """A contestant cannot be started, died, hung or refused; the text says which."""


@dataclass
class Launch:
    """One process to start. The first of a contestant is the one that speaks."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


class Contestant:
    """A started group of ranks. `status` is "running", or the reason why it is out."""

    def __init__(self, name: str, launches: Sequence[Launch], scratch: Path) -> None:
        self.name = name
        self.version = ""
        self.status = "running"
        self.scratch = scratch
        self.pending = b""
        self.log = (scratch / "stderr").open("w+b")
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for launch in launches:
                self.processes.append(self.spawn(launch))
            hello = self.answer(START_LIMIT_S)
            if not hello.get("ready"):
                raise Unable(f"did not say it was ready: {hello}")
        except (OSError, Unable) as error:
            self.close(str(error))
            raise Unable(str(error)) from error
        except BaseException:
            self.close("interrupted")
            raise
        self.version = str(hello.get("version", ""))

    def spawn(self, launch: Launch) -> subprocess.Popen[bytes]:
        speaks = not self.processes
        return subprocess.Popen(
            launch.argv,
            env={**os.environ, **launch.env},
            stdin=subprocess.PIPE if speaks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if speaks else self.log,
            stderr=self.log,
            # Its own session: Ctrl-C reaches the driver only, which then ends its contestants in order.
            start_new_session=True,
        )

    def ask(self, command: str, limit_s: float) -> dict[str, float]:
        """Sends one command and returns its answer. A contestant that hangs or dies is ended and `Unable` raised."""
        if self.status != "running":
            raise Unable(self.status)
        speaker = self.processes[0]
        assert speaker.stdin is not None
        try:
            speaker.stdin.write(command.encode() + b"\n")
            speaker.stdin.flush()
            answer = self.answer(limit_s)
        except OSError as error:
            self.close(f"died: {error}{self.last_words()}")
            raise Unable(self.status) from error
        except Unable as error:
            self.close(str(error))
            raise
        if "error" in answer:
            raise Unable(f"refused `{command}`: {answer['error']}")
        return answer

    def answer(self, limit_s: float) -> dict[str, float]:
        """The next line of JSON; other lines (a library's warnings) are skipped."""
        give_up = time.monotonic() + limit_s
        while True:
            line = self.line(give_up)
            if line is None:
                raise Unable(f"hung: no answer within {limit_s:.0f} s{self.last_words()}")
            if line.startswith(b"{"):
                return json.loads(line)

    def line(self, give_up: float) -> bytes | None:
        """The next line of stdout, or None when `give_up` passes."""
        stdout = self.processes[0].stdout
        assert stdout is not None
        while b"\n" not in self.pending:
            if not select.select([stdout], [], [], max(0.0, give_up - time.monotonic()))[0]:
                return None
            part = os.read(stdout.fileno(), 65536)
            if not part:
                raise Unable(f"died{self.last_words()}")
            self.pending += part
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def last_words(self) -> str:
        """The end of what the contestant wrote to stderr, on one line."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return ": " + " | ".join(lines[-3:]) if lines else ""

    def cpu_seconds(self) -> float:
        """CPU time used so far by all its processes."""
        return sum(stat.cpu_s for stat in tree(process.pid for process in self.processes))

    def close(self, status: str = "ended") -> None:
        """Asks it to quit, then ends by id whatever is left of its processes. Again is harmless."""
        if self.status != "running":
            return
        self.status = status
        members = tree(process.pid for process in self.processes if process.poll() is None)
        if status == "ended":
            self.ask_to_quit()
            wait_gone(self.processes, members, 5.0)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for member in members:
                if member.alive():
                    kill(member.pid, number)
            if wait_gone(self.processes, members, 3.0):
                break
        for process in self.processes:
            for pipe in (process.stdin, process.stdout):
                close_quietly(pipe)
        self.log.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def ask_to_quit(self) -> None:
        stdin = self.processes[0].stdin if self.processes else None
        if stdin:
            with suppress(OSError):
                stdin.write(b"quit\n")
                stdin.close()


def close_quietly(pipe: IO[bytes] | None) -> None:
    with suppress(OSError):
        if pipe:
            pipe.close()


def kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_gone(processes: Sequence[subprocess.Popen[bytes]], members: Sequence[Stat], limit_s: float) -> bool:
    """Whether all are gone within the limit; collects the exit status of those that are ours."""
    give_up = time.monotonic() + limit_s
    while True:
        running = [process for process in processes if process.poll() is None]
        if not running and not any(member.alive() for member in members):
            return True
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)


@dataclass(frozen=True)
class Stat:
    """A process at one moment. The start time tells it from a later one with the same id."""

    pid: int
    parent: int
    started: int
    cpu_s: float

    def alive(self) -> bool:
        now = read_stat(self.pid)
        return now is not None and now.started == self.started


def read_stat(pid: int) -> Stat | None:
    """From /proc; None for a process that is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] == "Z":
        return None
    return Stat(pid, int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / TICKS_PER_S)


def tree(roots: Iterable[int]) -> list[Stat]:
    """The given processes and all that descend from them."""
    everyone = [stat for entry in os.listdir("/proc") if entry.isdigit() and (stat := read_stat(int(entry)))]
    wanted = set(roots)
    found: dict[int, Stat] = {}
    grew = True
    while grew:
        more = {s.pid: s for s in everyone if s.pid not in found and (s.pid in wanted or s.parent in found)}
        found.update(more)
        grew = bool(more)
    return list(found.values())


# --- starting ---------------------------------------------------------------------------------------------------------

Maker = Callable[[int, Path], list[Launch]]


def start(stack: ExitStack, name: str, make: Maker, ranks: int, problems: dict[str, str]) -> Contestant | None:
    """Starts one contestant, to be ended with the stack; one that cannot start is noted, said, and left out."""
    # A short path: Unix sockets allow about 100 characters.
    scratch = Path(tempfile.mkdtemp(prefix="corro-bench-"))
    try:
        contestant = Contestant(name, make(ranks, scratch), scratch)
    except Unable as error:
        shutil.rmtree(scratch, ignore_errors=True)
        problems[name] = f"cannot start: {error}"
        print(f"left out: {name} with {ranks} ranks: cannot start: {error}", file=sys.stderr)
        return None
    stack.callback(contestant.close)
    return contestant


# --- the table of contestants on one host -----------------------------------------------------------------------------


def peer_script(name: str) -> list[str]:
    if not PYTHON.exists():
        raise Unable(f"{PYTHON} is missing: run bench/setup")
    return [str(PYTHON), str(BENCH / "peers" / name)]


def python_ranks(script: str, ranks: int, arguments: Sequence[str], env: dict[str, str]) -> list[Launch]:
    """One process per rank of a script that takes --rank and --size."""
    command = [*peer_script(script), "--size", str(ranks), *arguments]
    return [Launch([*command, "--rank", str(rank)], env) for rank in range(ranks)]


def gloo_arguments(scratch: Path) -> list[str]:
    return ["--store", str(scratch / "store"), "--side", str(scratch / "side")]


def gloo(ranks: int, scratch: Path) -> list[Launch]:
    return python_ranks("gloo_rounds.py", ranks, gloo_arguments(scratch), {"GLOO_SOCKET_IFNAME": "lo"})


def memcpy(ranks: int, scratch: Path) -> list[Launch]:
    return python_ranks("memcpy_rounds.py", ranks, ["--side", str(scratch / "side")], {})


def mpi(kind: str, ranks: int, scratch: Path, flags: Sequence[str], env: dict[str, str]) -> list[Launch]:
    prefix = VENV / kind
    mpiexec = prefix / "bin" / "mpiexec"
    if not mpiexec.exists():
        raise Unable(f"{mpiexec} is missing: run bench/setup")
    script = [*peer_script("mpi_rounds.py"), "--side", str(scratch / "side")]
    libraries = {"MPI4PY_MPIABI": kind, "LD_LIBRARY_PATH": str(prefix / "lib")}
    return [Launch([str(mpiexec), *flags, "-n", str(ranks), *script], {**libraries, **env})]


def openmpi(ranks: int, scratch: Path) -> list[Launch]:
    # Without the flag Open MPI binds each rank to a core and spins; with it, it yields. It gets whichever fits.
    flags = ["--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else []
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return mpi("openmpi", ranks, scratch, flags, root)


def mpich(ranks: int, scratch: Path) -> list[Launch]:
    return mpi("mpich", ranks, scratch, [], {})


def corro(ranks: int, _scratch: Path, binary: Path = CORRO) -> list[Launch]:
    return [Launch([str(corro_binary(binary)), "--ranks", str(ranks)])]


def corro_ranks(hosts: Sequence[str], rendezvous: str, binary: Path = CORRO, flags: Sequence[str] = ()) -> list[Launch]:
    """One process per rank, on hosts called so: those of one machine would take each other for the same host."""
    secret = secrets.token_hex(32)
    command = [str(corro_binary(binary)), "--size", str(len(hosts)), "--rendezvous", rendezvous, *flags]
    return [
        Launch([*command, "--rank", str(rank)], {"CORRO_SECRET": secret, "CORRO_HOSTNAME": host})
        for rank, host in enumerate(hosts)
    ]


def corro_binary(binary: Path) -> Path:
    if not binary.exists():
        raise Unable(f"{binary} is missing: cargo build --release -p corro-bench")
    return binary


PEERS = {"gloo": gloo, "openmpi": openmpi, "mpich": mpich}
