"""Corro's MPI plane beside the same MPI's own allreduce (mpi4py): one program, one MPI, by turns.

    CORRO_CPU_OPERATIONS=mpi mpiexec -n 2 python bench/mpi_plane.py [--sizes 64k,1m,16m] [--rounds 9]

Prints a line a size: the median time of an allreduce in place of float32 by each, over rounds that alternate, and their ratio.
Without the variable it is Corro's own plane that is beside MPI.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import corro.numpy as hvd

UNITS = {"k": 1 << 10, "m": 1 << 20}


def size_of(text: str) -> int:
    """`64k` in bytes."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def timed(world: MPI.Comm, act: Callable[[], object], times: int) -> float:
    """Seconds that one of `times` calls takes on the slowest rank."""
    world.Barrier()
    begin = time.perf_counter()
    for _ in range(times):
        act()
    return float(world.allreduce((time.perf_counter() - begin) / times, op=MPI.MAX))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="64k,256k,1m,4m,16m,64m")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    hvd.init(comm=world)
    if world.rank == 0:
        line = " ".join(MPI.Get_library_version().split()[:3]).strip(",")
        print(f"{line}, {world.size} ranks; tensors by {'mpi' if os.environ.get('CORRO_CPU_OPERATIONS') == 'mpi' else 'corro'}")
        print(f"{'bytes':>10} {'mpi4py us':>10} {'corro us':>10} {'ratio':>6}")
    for size in map(size_of, options.sizes.split(",")):
        ours, theirs = (np.zeros(size // 4, np.float32) for _ in range(2))
        times = max(3, min(200, (64 << 20) // size))

        def by_corro(array: np.ndarray = ours, name: str = f"x{size}") -> None:
            hvd.allreduce_(array, op=hvd.Sum, name=name)

        def by_mpi(array: np.ndarray = theirs) -> None:
            world.Allreduce(MPI.IN_PLACE, array, MPI.SUM)

        rounds: list[tuple[float, float]] = []
        # The first round warms up both.
        for at in range(options.rounds + 1):
            order = (by_mpi, by_corro) if at % 2 else (by_corro, by_mpi)
            took = {act: timed(world, act, times) for act in order}
            rounds.append((took[by_mpi], took[by_corro]))
        mpi, corro = (statistics.median(pair[which] for pair in rounds[1:]) * 1e6 for which in (0, 1))
        if world.rank == 0:
            print(f"{size:>10} {mpi:>10.1f} {corro:>10.1f} {corro / mpi:>6.2f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
