#!/usr/bin/env python3
"""The Python front's operations beside torch's Gloo and beside the data plane without any Python, in one run.

    python bench/python_ops.py [--ranks 2]

Owns what is measured and shown; the ranks are this same script, started by `corro run`. Gloo runs in the same processes,
so both see the same machine. The data plane is `corro-rounds`, asked in each round through `contestants`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

BENCH = Path(__file__).resolve().parent
SMALL, LARGE = 1, 16 * 1024 * 1024
TENSORS, ELEMENTS = 100, 10_000
ROUNDS = 15
RAW = "64 MiB, data plane without Python"


def ranks_part(result: Path) -> None:
    """What every rank does; rank 0 writes the figures, in microseconds."""
    import torch
    import torch.distributed as dist

    import corro.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    store = start_store(hvd, dist)
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())

    small, large = torch.ones(SMALL), torch.ones(LARGE)
    shared = hvd.shared_empty(LARGE).fill_(1)
    many = [torch.ones(ELEMENTS) for _ in range(TENSORS)]

    def corro_many() -> None:
        handles = [hvd.allreduce_async_(tensor, op=hvd.Max, name=f"tensor {i}") for i, tensor in enumerate(many)]
        for handle in handles:
            hvd.synchronize(handle)

    def corro_many_unnamed() -> None:
        handles = [hvd.allreduce_async_(tensor, op=hvd.Max) for tensor in many]
        for handle in handles:
            hvd.synchronize(handle)

    def gloo_many() -> None:
        works = [dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True) for tensor in many]
        for work in works:
            work.wait()

    # Max leaves the numbers as they are, however often it is repeated.
    cases: dict[str, tuple[Callable[[], object], int]] = {
        "4 B, corro allreduce_": (lambda: hvd.allreduce_(small, op=hvd.Max, name="small"), 500),
        "4 B, corro allreduce_ without a name": (lambda: hvd.allreduce_(small, op=hvd.Max), 500),
        "4 B, gloo": (lambda: dist.all_reduce(small, dist.ReduceOp.MAX), 500),
        "64 MiB, corro allreduce_": (lambda: hvd.allreduce_(large, op=hvd.Max, name="large"), 3),
        "64 MiB, corro allreduce_ in shared memory": (
            lambda: hvd.allreduce_(shared, op=hvd.Max, name="shared"),
            3,
        ),
        "64 MiB, gloo": (lambda: dist.all_reduce(large, dist.ReduceOp.MAX), 3),
        "100 x 40 KB, corro": (corro_many, 20),
        "100 x 40 KB, corro without names": (corro_many_unnamed, 20),
        "100 x 40 KB, gloo": (gloo_many, 20),
    }
    with ExitStack() as stack:
        raw = data_plane(stack, hvd.size()) if hvd.rank() == 0 else None
        times: dict[str, list[float]] = {name: [] for name in cases}
        for round_number in range(ROUNDS + 1):
            for name, (operation, count) in cases.items():
                # What the engine has planned for the case before is not what this one needs. (Gloo's barrier is nothing
                # that it could have planned for.)
                for _ in range(count if round_number else 10 * count):
                    operation()
                dist.barrier()
                start = time.perf_counter()
                for _ in range(count):
                    operation()
                if round_number:  # the first round warms up
                    times[name].append((time.perf_counter() - start) / count * 1e6)
            dist.barrier()
            if raw is not None and round_number:
                times.setdefault(RAW, []).append(raw())
    if hvd.rank() == 0:
        result.write_text(json.dumps(times))
    hvd.barrier()
    dist.destroy_process_group()


def start_store(hvd, dist):
    """torch's rendezvous, on a port that rank 0 finds free."""
    store = dist.TCPStore("127.0.0.1", 0, hvd.size(), hvd.rank() == 0, wait_for_workers=False) if hvd.rank() == 0 else None
    port = hvd.broadcast_object(store.port if store else None, 0, "port")
    return store or dist.TCPStore("127.0.0.1", port, hvd.size(), False, wait_for_workers=False)


def data_plane(stack: ExitStack, ranks: int) -> Callable[[], float] | None:
    """Gives the microseconds of a 64 MiB allreduce without Python; None where `corro-rounds` has not been built."""
    sys.path.insert(0, str(BENCH))
    from contestants import corro, start

    # It is a job of its own.
    ours = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("CORRO_", "HOROVOD_"))}
    try:
        contestant = start(stack, "corro", corro, ranks, {})
    finally:
        os.environ.update(ours)
    if contestant is None:
        return None
    return lambda: contestant.ask(f"allreduce {LARGE * 4} 5 2", 60)["median_us"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.result:
        ranks_part(options.result)
        return

    from corro._command import program

    result = Path(tempfile.gettempdir(), f"corro-python-ops-{os.getpid()}.json")
    command = [program(), "run", "-np", str(options.ranks), sys.executable, __file__, "--result", str(result)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, env=environment, check=True, timeout=300)
    times = json.loads(result.read_text())
    result.unlink()

    print(f"\n{options.ranks} ranks, one thread each; microseconds, median of {ROUNDS} rounds (least)\n")
    for name, rounds in times.items():
        beside = ""
        if RAW in times and name.startswith("64 MiB, corro"):
            ratio = statistics.median(mine / raw for mine, raw in zip(rounds, times[RAW], strict=True))
            beside = f"   {ratio:.2f} x the data plane"
        print(f"{name:42s} {statistics.median(rounds):12,.1f}   ({min(rounds):,.1f}){beside}")


if __name__ == "__main__":
    main()
