#!/usr/bin/env python3
"""JAX's allreduce under jit: Corro beside mpi4jax (Open MPI) and beside jax.distributed with its CPU collectives, in one run.

    bench/setup_jax && .venv-bench-jax/bin/python bench/jax_ops.py [--ranks 2,4] [--quick]

All three live in the same processes, which mpiexec starts, so that they see the same machine; rounds alternate. A figure is the
median of a round's calls, on the slowest rank; a ratio divides two figures of the same round. Also: what a call costs over
an empty compiled function, a tree of 100 leaves beside one buffer of the same bytes, and steps of a small transformer.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
SIZES = [4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
SECONDS = 0.15
LEAVES, ELEMENTS = 100, 10_000


def contestants(jax: Any, hvd: Any) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    """By name: a compiled sum of what each rank has, and what makes an array of a rank into what that takes."""
    import mpi4jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from mpi4py import MPI

    mesh = Mesh(np.array(jax.devices()), ("p",))
    rows = NamedSharding(mesh, PartitionSpec("p"))
    summed = jax.shard_map(
        lambda tree: jax.lax.psum(tree, "p"), mesh=mesh, in_specs=PartitionSpec("p"), out_specs=PartitionSpec()
    )

    def spread(tree: Any) -> Any:
        def one(x: Any) -> Any:
            whole = (jax.process_count(), *x.shape)
            return jax.make_array_from_single_device_arrays(whole, rows, [x[None]])

        return jax.tree_util.tree_map(one, tree)

    def by_mpi(tree: Any) -> Any:
        return jax.tree_util.tree_map(lambda x: mpi4jax.allreduce(x, MPI.SUM, comm=MPI.COMM_WORLD), tree)

    def itself(tree: Any) -> Any:
        return tree

    return {
        "Corro": (jax.jit(lambda tree: hvd.allreduce(tree, op=hvd.Sum)), itself),
        "mpi4jax": (jax.jit(by_mpi), itself),
        "jax.distributed": (jax.jit(summed), spread),
    }


def rounds(calls: dict[str, Callable[[], Any]], count: int) -> dict[str, list[float]]:
    """The figures of each round, in microseconds; each round begins with another contestant."""
    import jax
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    repeats = {}
    for name, call in calls.items():
        jax.block_until_ready(call())
        start = time.perf_counter()
        for _ in range(3):
            jax.block_until_ready(call())
        repeats[name] = world.bcast(int(min(max(SECONDS / ((time.perf_counter() - start) / 3), 3), 3000)))
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(count):
        names = list(calls)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            call, times = calls[name], np.empty(repeats[name])
            world.Barrier()
            for i in range(len(times)):
                start = time.perf_counter()
                jax.block_until_ready(call())
                times[i] = time.perf_counter() - start
            slowest = np.empty_like(times)
            world.Allreduce(times, slowest, MPI.MAX)
            figures[name].append(float(np.median(slowest) * 1e6))
    return figures


def training_steps(jax: Any, hvd: Any) -> dict[str, Callable[[], Any]]:
    """Steps of the transformer of examples/jax, with gradients that stay here or are reduced in three ways."""
    sys.path.insert(0, str(BENCH.parent / "examples" / "jax"))
    import mpi4jax
    import numpy as np
    import transformer
    from jax.sharding import Mesh, PartitionSpec
    from mpi4py import MPI

    params = transformer.writer(jax.random.key(0), 64, 64)
    passages = np.zeros((4, 65), np.int32)
    gradient = jax.grad(transformer.loss_of)
    mesh = Mesh(np.array(jax.devices()), ("p",))
    everywhere = PartitionSpec()
    shared = jax.jit(
        jax.shard_map(
            lambda p, x: jax.tree_util.tree_map(lambda g: jax.lax.psum(g, "p"), gradient(p, x)),
            mesh=mesh,
            in_specs=(everywhere, everywhere),
            out_specs=everywhere,
            check_vma=False,
        )
    )
    alone = jax.jit(gradient)
    corro = jax.jit(lambda p, x: hvd.allreduce(gradient(p, x), op=hvd.Sum))
    mpi = jax.jit(
        lambda p, x: jax.tree_util.tree_map(lambda g: mpi4jax.allreduce(g, MPI.SUM, comm=MPI.COMM_WORLD), gradient(p, x))
    )
    host = jax.tree_util.tree_map(np.asarray, params)
    return {
        "no reduction": lambda: alone(params, passages),
        "Corro": lambda: corro(params, passages),
        "mpi4jax": lambda: mpi(params, passages),
        "jax.distributed": lambda: shared(host, passages),
    }


def ranks_part(port: str, count: int) -> None:
    """What every rank does; rank 0 prints the figures."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", num_processes=world.size, process_id=world.rank)
    import jax.numpy as jnp

    import corro.jax as hvd

    hvd.init()
    assert hvd.size() == world.size
    result: dict[str, Any] = {"ranks": world.size, "sizes": {}}
    people = contestants(jax, hvd)
    for size in SIZES:
        mine = jnp.ones(size // 4)
        ready = {name: (reduce, prepare(mine)) for name, (reduce, prepare) in people.items()}
        calls = {name: (lambda r=reduce, x=x: r(x)) for name, (reduce, x) in ready.items()}
        result["sizes"][size] = rounds(calls, count)
    empty, reduce = jax.jit(lambda x: x + 1), people["Corro"][0]
    small = jnp.ones(1)
    result["empty"] = rounds({"empty": lambda: empty(small), "Corro": lambda: reduce(small)}, count)
    tree, flat = [jnp.ones(ELEMENTS) for _ in range(LEAVES)], jnp.ones(LEAVES * ELEMENTS)
    result["tree"] = rounds({"tree": lambda: reduce(tree), "flat": lambda: reduce(flat)}, count)
    result["training"] = rounds(training_steps(jax, hvd), count)
    if world.rank == 0:
        print("RESULT", json.dumps(result), flush=True)
    hvd.shutdown()


def ratio(above: list[float], below: list[float]) -> str:
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    return f"{statistics.median(ratios):6.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['ranks']} ranks: microseconds of an allreduce under jit, and how many times longer the peers take")
    print(f"{'bytes':>10} {'Corro':>10} {'mpi4jax':>10} {'jax.dist.':>10}   mpi4jax / Corro         jax.distributed / Corro")
    for size, figures in result["sizes"].items():
        medians = [statistics.median(figures[name]) for name in ("Corro", "mpi4jax", "jax.distributed")]
        ratios = [ratio(figures[name], figures["Corro"]) for name in ("mpi4jax", "jax.distributed")]
        print(f"{size:>10} " + " ".join(f"{m:10.1f}" for m in medians) + "   " + "   ".join(f"{r:21}" for r in ratios))
    middle = {name: {k: statistics.median(v) for k, v in result[name].items()} for name in ("empty", "tree", "training")}
    print(f"4 B over an empty compiled function: {middle['empty']['Corro'] - middle['empty']['empty']:.1f} us")
    print(f"a tree of {LEAVES} leaves beside one buffer: {ratio(result['tree']['tree'], result['tree']['flat'])}")
    alone = middle["training"].pop("no reduction")
    added = {name: f"{value - alone:+.0f}" for name, value in middle["training"].items()}
    print(f"a transformer's gradients: {alone:.0f} us alone, and {added} us with the reduction", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rank-part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    count = 2 if options.quick else options.rounds
    if options.rank_part:
        ranks_part(options.rank_part, count)
        return
    mpiexec = [str(Path(sys.executable).parent / "mpiexec"), "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        mpiexec.append("--allow-run-as-root")
    for ranks in options.ranks.split(","):
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        command = [*mpiexec, "-n", ranks, sys.executable, __file__, "--rank-part", str(port), "--rounds", str(count)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        job = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500, check=False)
        lines = [line for line in job.stdout.splitlines() if line.startswith("RESULT ")]
        if job.returncode and not lines:
            sys.exit(f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}")
        show(json.loads(lines[0].removeprefix("RESULT ")))


if __name__ == "__main__":
    main()
