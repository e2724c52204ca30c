"""Elastic jobs for tests: starts one, watches what its ranks write down, breaks it, and sees that nothing is left."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from corro._command import program

WORKER = Path(__file__).with_name("worker.py")
Event = dict[str, Any]
# Nothing here takes nearly so long; a job that hangs is to fail the test, not to stop it.
LIMIT = 90.0


class Watched:
    """Processes that run the worker, and what they write down."""

    log: Path
    output: Path

    def ended(self) -> bool:
        """Whether nothing can happen any more."""
        raise NotImplementedError

    def events(self, event: str | None = None) -> list[Event]:
        """What the ranks have written down, in order of time."""
        lines = [line for file in self.log.glob("*.jsonl") for line in file.read_text().splitlines(keepends=True)]
        # The last line of a file may be under way.
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return sorted((e for e in events if event in (None, e["event"])), key=lambda e: e["time"])

    def wait(self, what: str, done: Callable[[], Any], limit: float = LIMIT) -> Any:
        """Until `done` gives something."""
        until = time.monotonic() + limit
        while not (result := done()):
            if self.ended() and not (result := done()):
                raise AssertionError(f"the job ended before {what}:\n{self.text()}")
            if time.monotonic() > until:
                raise AssertionError(f"still waiting for {what} after {limit} s:\n{self.text()}\n{self.events()[-20:]}")
            time.sleep(0.02)
        return result

    def wait_for_steps(self, steps: int, size: int | None = None, after: float = 0.0) -> Event:
        """Until a step with at least this number is done, by so many ranks, after that time."""

        def found() -> Event | None:
            for e in reversed(self.events("step")):
                if e["time"] > after and e["steps"] >= steps and size in (None, e["size"]):
                    return e
            return None

        return self.wait(f"step {steps} of {size} ranks", found)

    def more_steps(self, steps: int, size: int | None = None) -> Event:
        """Until so many more steps are done than now."""
        now = max((e["steps"] for e in self.events("step")), default=0)
        return self.wait_for_steps(now + steps, size, time.monotonic())

    def stop(self) -> None:
        """Has the training end after the epoch it is in."""
        (self.log / "stop").touch()

    def text(self) -> str:
        return self.output.read_text(errors="replace")[-6000:]


class Job(Watched):
    """One run of `corro run` on this host, under a directory of its own."""

    def __init__(
        self,
        directory: Path,
        options: Iterable[str] = (),
        script: Path = WORKER,
        arguments: Iterable[str] = (),
        fault: str = "",
        **variables: str,
    ) -> None:
        self.log = directory / "log"
        self.log.mkdir()
        self.hosts = directory / "hosts"
        self.output = directory / "output"
        variables = {"ELASTIC_LOG": str(self.log), "ELASTIC_FAULT": fault, "OMP_NUM_THREADS": "1", **variables}
        # A rank that is cut off must not keep a test waiting for a minute.
        short = {"CORRO_TIMEOUT": "20", "CORRO_ELASTIC_SILENCE": "3", "CORRO_ELASTIC_ORPHAN_TIME": "3"}
        variables = {**short, **variables}
        with self.output.open("wb") as output:
            self.launcher = subprocess.Popen(
                [program(), "run", *options, sys.executable, str(script), *arguments],
                env={**os.environ, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @classmethod
    def discovered(cls, directory: Path, slots: int, options: Iterable[str] = (), **kwargs: Any) -> Job:
        """A job whose hosts are found by a script: this one, with as many slots as `set_slots` said last."""
        script = directory / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat {directory}/hosts\n")
        script.chmod(0o755)
        (directory / "hosts").write_text(f"localhost:{slots}\n")
        return cls(directory, ["--host-discovery-script", str(script), *options], **kwargs)

    def set_slots(self, slots: int) -> None:
        new = self.hosts.with_suffix(".new")
        new.write_text(f"localhost:{slots}\n")
        new.rename(self.hosts)

    def ended(self) -> bool:
        return self.launcher.poll() is not None

    def ranks(self) -> dict[int, int]:
        """The processes of the last epoch: rank -> process id."""
        last: dict[int, Event] = {}
        for e in self.events("step"):
            last[e["pid"]] = e
        newest = max(e["steps"] for e in last.values())
        return {e["rank"]: pid for pid, e in last.items() if e["steps"] >= newest - 2 and alive(pid)}

    def kill(self, *ranks: int, sign: signal.Signals = signal.SIGKILL) -> list[int]:
        """Sends a signal to these ranks, as close together as can be."""
        of = self.ranks()
        pids = [of[rank] for rank in ranks]
        for pid in pids:
            os.kill(pid, sign)
        return pids

    def finish(self, limit: float = LIMIT) -> str:
        """Waits for the end of the job; what it wrote."""
        try:
            self.launcher.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {limit} s:\n{self.text()}") from None
        return self.text()

    def leave_nothing(self) -> None:
        """Ends whatever is left, and complains of it."""
        if self.launcher.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.launcher.pid, signal.SIGKILL)
            self.launcher.wait()
        pids = {e["pid"] for e in self.events()}
        until = time.monotonic() + 20
        while left := [pid for pid in pids if alive(pid)]:
            if time.monotonic() > until:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"processes {left} outlived their job:\n{self.text()}")
            time.sleep(0.05)


class Scheduler(Watched):
    """Starts workers as Kubernetes would: each knows which one it is and where the first is, and nothing else."""

    def __init__(self, directory: Path, size: int) -> None:
        self.log = directory / "log"
        self.log.mkdir()
        self.output = directory / "output"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._variables = {
            "CORRO_ELASTIC": "1",
            "CORRO_SIZE": str(size),
            "CORRO_SECRET": secrets.token_hex(32),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port - 1),
            "CORRO_ELASTIC_MIN_NP": "2",
            "CORRO_ELASTIC_TIMEOUT": "60",
            "CORRO_ELASTIC_SILENCE": "3",
            "CORRO_TIMEOUT": "20",
            "ELASTIC_LOG": str(self.log),
        }
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for index in range(size):
            self.start(index)

    def start(self, index: int) -> None:
        env = {**os.environ, **self._variables, "CORRO_RANK": str(index)}
        with self.output.open("ab") as output:
            self.processes[index] = subprocess.Popen(
                [sys.executable, str(WORKER)], env=env, stdout=output, stderr=subprocess.STDOUT
            )

    def ended(self) -> bool:
        return all(process.poll() is not None for process in self.processes.values())


def alive(pid: int) -> bool:
    """Whether a process runs (or is stopped); what only waits to be buried does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def check_losses(losses: list[float]) -> None:
    """One curve, without a jump: nothing was lost, and nothing was done twice."""
    assert losses, "nobody trained"
    for before, after in itertools.pairwise(losses):
        assert after < before * 1.5 + 0.01, f"the loss jumps from {before} to {after}"
    assert losses[-1] < losses[0] / 2, losses
