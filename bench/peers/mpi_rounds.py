"""Open MPI or MPICH as a server of rounds, through mpi4py. Started by bench/contestants.py under the MPI's own mpiexec.

Which of the two is decided by MPI4PY_MPIABI and LD_LIBRARY_PATH. mpi4py adds about 0.3 us to a call.
"""

from __future__ import annotations

import argparse

import numpy as np
from mpi4py import MPI

import rounds


class Mpi:
    sums = True

    def __init__(self) -> None:
        self.comm = MPI.COMM_WORLD
        self.rank = self.comm.Get_rank()
        self.size = self.comm.Get_size()
        first_line = MPI.Get_library_version().splitlines()[0]
        self.version = " ".join(first_line.split(",")[0].split())
        self.message: list[object] = []

    def load(self, buffer: np.ndarray) -> None:
        self.message = [buffer, MPI.FLOAT]

    def barrier(self) -> None:
        self.comm.Barrier()

    def step(self) -> None:
        self.comm.Allreduce(MPI.IN_PLACE, self.message, MPI.SUM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", required=True, help="path of the side channel's socket")
    options = parser.parse_args()
    peer = Mpi()
    rounds.serve(peer, rounds.SideChannel(peer.rank, peer.size, options.side))


if __name__ == "__main__":
    main()
