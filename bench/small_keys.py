"""Pushes and pulls of one float on loopback: a store beside redis and torch's RPC, in one run.

    corro run -np 1 --servers 1 python bench/small_keys.py [--check]

Each has a server in a process of its own and one client in Python. "one by one" pushes (adds 1) and pulls, and waits for each pull; "many at
once" lets up to 256 be under way. Needs `redis-server` and the packages redis and torch; says what is missing and leaves it out.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

COUNT, WINDOW = 4000, 256
ONE = np.ones(1, np.float32)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Corro:
    """A store without bounds, as the other two are."""

    def __init__(self) -> None:
        from corro import ps

        self._store = ps.Store(consistency=ps.Async(staleness_lr=False), servers="spare")
        self._store.init("x", np.zeros(1, np.float32))
        self._room = np.zeros(1, np.float32)

    def one_by_one(self, count: int) -> None:
        for _ in range(count):
            self._store.push("x", ONE)
            self._store.pull("x", out=self._room)

    def many(self, count: int) -> None:
        under_way: collections.deque[Any] = collections.deque()
        for _ in range(count):
            self._store.push("x", ONE)
            under_way.append(self._store.pull_async("x"))
            if len(under_way) > WINDOW:
                under_way.popleft().wait(self._room)
        while under_way:
            under_way.popleft().wait(self._room)


class Redis:
    """INCRBYFLOAT and GET; many at once as a pipeline."""

    def __init__(self, port: int) -> None:
        import redis

        self._client = redis.Redis(port=port)
        for _ in range(100):
            with suppress(redis.ConnectionError):
                self._client.set("x", 0)
                return
            time.sleep(0.05)

    def one_by_one(self, count: int) -> None:
        for _ in range(count):
            self._client.incrbyfloat("x", 1)
            float(self._client.get("x"))

    def many(self, count: int) -> None:
        for begin in range(0, count, WINDOW):
            pipe = self._client.pipeline(transaction=False)
            for _ in range(min(WINDOW, count - begin)):
                pipe.incrbyfloat("x", 1)
                pipe.get("x")
            pipe.execute()


_value = None


def _rpc_push(change: Any) -> None:
    global _value
    _value = change if _value is None else _value + change


def _rpc_pull() -> Any:
    return _value


class TorchRpc:
    """A tensor in another process: rpc_async for what is not waited for, rpc_sync for what is."""

    def __init__(self, port: int) -> None:
        import torch
        from torch.distributed import rpc

        self._rpc, self._one = rpc, torch.ones(1)
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", _transports=["uv"])
        rpc.init_rpc("client", rank=0, world_size=2, rpc_backend_options=options)

    def one_by_one(self, count: int) -> None:
        for _ in range(count):
            self._rpc.rpc_async("server", _rpc_push, args=(self._one,))
            self._rpc.rpc_sync("server", _rpc_pull)

    def many(self, count: int) -> None:
        under_way: collections.deque[Any] = collections.deque()
        for _ in range(count):
            self._rpc.rpc_async("server", _rpc_push, args=(self._one,))
            under_way.append(self._rpc.rpc_async("server", _rpc_pull))
            if len(under_way) > WINDOW:
                under_way.popleft().wait()
        while under_way:
            under_way.popleft().wait()


def serve_rpc(port: int) -> None:
    """The other process of torch's RPC."""
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", _transports=["uv"])
    rpc.init_rpc("server", rank=1, world_size=2, rpc_backend_options=options)
    time.sleep(3600)


@contextmanager
def contestants() -> Iterator[dict[str, Any]]:
    started: list[subprocess.Popen[bytes]] = []
    found: dict[str, Any] = {"corro": Corro()}
    try:
        try:
            import redis  # noqa: F401

            if not shutil.which("redis-server"):
                raise ImportError("redis-server is not installed")
            port = free_port()
            quiet = ["--save", "", "--appendonly", "no", "--loglevel", "warning"]
            started.append(subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", *quiet]))
            found["redis"] = Redis(port)
        except ImportError as reason:
            print(f"small_keys: without redis: {reason}")
        try:
            port = free_port()
            # Not a rank of this job.
            plain = {key: value for key, value in os.environ.items() if not key.startswith(("CORRO_", "HOROVOD_"))}
            started.append(subprocess.Popen([sys.executable, __file__, "--rpc", str(port)], env=plain))
            found["torch RPC"] = TorchRpc(port)
        except (ImportError, RuntimeError) as reason:
            print(f"small_keys: without torch's RPC: {reason}")
        yield found
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rpc", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="fail where the bar is missed")
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    chosen = parser.parse_args()
    if chosen.rpc:
        serve_rpc(chosen.rpc)
    import corro

    corro.init()
    with contestants() as found:
        rates: dict[str, dict[str, list[float]]] = {name: {"one_by_one": [], "many": []} for name in found}
        for at in range(chosen.rounds + 1):
            for name, one in found.items():
                for how, values in rates[name].items():
                    begin = time.perf_counter()
                    getattr(one, how)(COUNT)
                    if at:  # the first one warms up
                        values.append(2 * COUNT / (time.perf_counter() - begin))
    medians = {name: {how: statistics.median(values) for how, values in hows.items()} for name, hows in rates.items()}
    print("operations/s (a push or a pull of one float), medians of alternating rounds")
    for name, hows in medians.items():
        print(f"{name:10} one by one {hows['one_by_one']:9.0f}   many at once {hows['many']:9.0f}")
    failed = False
    for how in ("one_by_one", "many"):
        peers = [hows[how] for name, hows in medians.items() if name != "corro"]
        if peers:
            times = medians["corro"][how] / max(peers)
            failed |= times < 2
            print(f"{how.replace('_', ' ')}: {times:.2f} times the best of the others (bar 2): {'met' if times >= 2 else 'MISSED'}")
    if chosen.out:
        chosen.out.write_text(json.dumps(medians, indent=1) + "\n")
    # Torch's RPC would wait for its server.
    sys.stdout.flush()
    corro.shutdown()
    os._exit(int(failed and chosen.check))


if __name__ == "__main__":
    sys.exit(main())
