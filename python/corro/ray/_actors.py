"""The actors that the ranks of an elastic job live in: as many as are wanted, started again when they are lost.

Which actors there are to be is decided in `_slots`; here they are started, watched and ended.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray

from corro import _native
from corro._tasks.driver import Calls
from corro._tasks.messages import Kind
from corro._tasks.post import PostOffice
from corro._tasks.task import Identity, Place, modules, serve
from corro.ray._slots import ANYWHERE, needed, pause

__all__ = ["KIND", "RANK", "Actors", "Needs"]

KIND = Kind("Ray", "actor", "node")
# Ranks are started by the Python of their actor, which has written down how.
RANK = ["/bin/sh", "-c", 'exec "$CORRO_RAY_FOLDER/rank"']

_LOOK_SECONDS = 0.5
# Who has lived as long did not fail because of where or how he was started.
_SETTLED_SECONDS = 60.0
# How long the ranks of an actor that is let go may take to leave.
_LEAVE_SECONDS = 30.0
# How long a look at Ray may take when all is over.
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class Needs:
    """What each actor holds."""

    cpus: float
    gpus: float

    def options(self, host: str) -> dict[str, Any]:
        there = {} if host == ANYWHERE else {"resources": {f"node:{host}": 0.001}}
        # Spread, so that a lost node takes as few ranks with it as can be.
        return {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
            **there,
        }


class _Home:
    """In a process of Ray's: holds what a rank needs, and starts the rank as a child."""

    def serve(self, launcher: Place, key: bytes, index: int, attempt: int) -> None:
        """Until the job is over. The key is an argument of a call, not of the actor's making, which Ray would keep."""
        context = ray.get_runtime_context()
        post = PostOffice(launcher, key)
        try:
            with tempfile.TemporaryDirectory(prefix="corro-ray-") as folder:
                self._write_start(os.path.join(folder, "rank"), post.path, context.get_node_id())
                environment = {**_environment(), "RAY_ADDRESS": context.gcs_address, "CORRO_RAY_FOLDER": folder}
                serve(launcher, key, Identity(index, attempt, context.get_node_id()), environment)
        finally:
            post.close()

    def _write_start(self, path: str, office: str, node: str) -> None:
        command = [sys.executable, "-m", "corro.ray._rank", office]
        own = [str(gpu) for gpu in ray.get_gpu_ids()]
        if own:
            command += [",".join(own), str(_gpus_on(node))]
        with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o700)) as script:
            script.write(f"#!/bin/sh\nexec {shlex.join(command)}\n")


def _environment() -> dict[str, str]:
    """What ranks start with: what this actor has, but for what only a worker of Ray's needs."""
    private = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE")
    return {**{name: value for name, value in os.environ.items() if name not in private}, **modules()}


def _gpus_on(node: str) -> int:
    return int(next((found["Resources"].get("GPU", 0) for found in ray.nodes() if found["NodeID"] == node), 0))


@dataclass
class _Held:
    host: str
    index: int
    actor: Any
    serving: Any
    since: float
    leaving_since: float | None = None


class Actors:
    """A `Tasks` (`corro._tasks.driver`). `wanted` says how many are wanted on which hosts; it is asked twice a second."""

    def __init__(
        self,
        needs: Needs,
        wanted: Callable[[], Mapping[str, int]],
        most: int | None,
        calls: Calls,
    ) -> None:
        self._needs = needs
        self._wanted = wanted
        self._most = most
        self._calls = calls
        self._held: dict[int, _Held] = {}
        self._attempts = itertools.count()
        # By index: how often in a row the one of this number has failed, and when it may be started again.
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._why: str | None = None
        self._last: Mapping[str, int] = {}
        self._is_silent = False
        self._stopping = threading.Event()
        self._kind: Any = ray.remote(_Home)
        self._thread = threading.Thread(target=self._run, daemon=True, name="corro-ray")
        self.over = threading.Event()
        self.failure: str | None = None

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self._look()
                if self._stopping.wait(_LOOK_SECONDS):
                    return
        except Exception as error:  # Ray is gone
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self.over.set()
            self._calls.ended()

    def _look(self) -> None:
        now = time.monotonic()
        self._bury(now)
        staying = {index: held.host for index, held in self._held.items() if held.leaving_since is None}
        change = needed(self._ask(), staying, self._most)
        for index in change.stop:
            self._held[index].leaving_since = now
            self._calls.let_go(index)
        for host in change.start:
            self._start_one(host, now)
        for held in list(self._held.values()):
            if held.leaving_since is not None and now - held.leaving_since > _LEAVE_SECONDS:
                ray.kill(held.actor)

    def _ask(self) -> Mapping[str, int]:
        """What is wanted. If nobody can say so now, it is what was wanted before."""
        try:
            self._last, self._is_silent = self._wanted(), False
        except Exception as error:
            if not self._is_silent:  # once, not twice a second
                _native.log_warning(f"asking for hosts failed, so the last answer still counts: {error}")
            self._is_silent = True
        return self._last

    def _start_one(self, host: str, now: float) -> None:
        index = next(index for index in itertools.count() if index not in self._held)
        if now < self._not_before.get(index, 0.0):
            return
        actor = self._kind.options(**self._needs.options(host)).remote()
        serving = actor.serve.remote(self._calls.launcher, self._calls.key, index, next(self._attempts))
        self._held[index] = _Held(host, index, actor, serving, now)

    def _bury(self, now: float) -> None:
        """Forgets those that are gone, and remembers why."""
        serving = {held.serving: held for held in self._held.values()}
        if not serving:
            return
        gone, _ = ray.wait(list(serving), num_returns=len(serving), timeout=0)
        for reference in gone:
            held = serving[reference]
            del self._held[held.index]
            try:
                ray.get(reference)
            except Exception as error:
                self._why = str(error).strip().splitlines()[-1]
            settled = now - held.since > _SETTLED_SECONDS or held.leaving_since is not None
            failures = 1 if settled else self._failures.get(held.index, 0) + 1
            self._failures[held.index] = failures
            self._not_before[held.index] = now + pause(failures)

    def cancel(self) -> None:
        self._stop()
        for held in self._held.values():
            with suppress(Exception):  # Ray may be gone
                ray.kill(held.actor)

    def finish(self, seconds: float) -> None:
        self._stop()
        serving = [held.serving for held in self._held.values()]
        if serving:
            with suppress(Exception):
                ray.wait(serving, num_returns=len(serving), timeout=seconds)
        self.cancel()

    def _stop(self) -> None:
        self._stopping.set()
        # It may wait for a Ray that is gone; then it is left to itself.
        self._thread.join(_STOP_SECONDS)

    def too_few(self, fewest: int, seconds: float, addresses: str) -> str:
        total, free = ray.cluster_resources(), ray.available_resources()
        said = f" The last one that was lost: {self._why}." if self._why else ""
        return (
            f"Ray has not started {fewest} actors with {self._needs.cpus:g} CPUs and {self._needs.gpus:g} GPUs each within "
            f"{seconds:g} s; the cluster has {total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs, of which "
            f"{free.get('CPU', 0):g} and {free.get('GPU', 0):g} are free.{said} Ask for fewer workers or less for each, "
            f"add nodes, or raise elastic_timeout. If {len(self._held)} run, they can't reach this program at {addresses}."
        )
