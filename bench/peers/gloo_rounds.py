"""Gloo as a server of rounds: one rank, through torch.distributed. Started by bench/contestants.py, once per rank.

The interface Gloo binds to comes from GLOO_SOCKET_IFNAME; the ranks meet through a file.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.distributed as dist

import rounds


class Gloo:
    sums = True

    def __init__(self, rank: int, size: int, store: str) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        self.rank = rank
        self.size = size
        self.version = f"Gloo of torch {torch.__version__}"
        self.tensor = torch.zeros(1)

    def load(self, buffer: np.ndarray) -> None:
        # numpy's memory, as for the MPI peers: numpy asks for huge pages where torch does not.
        self.tensor = torch.from_numpy(buffer)

    def barrier(self) -> None:
        dist.barrier()

    def step(self) -> None:
        dist.all_reduce(self.tensor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--store", required=True, help="file through which the ranks meet")
    parser.add_argument("--side", required=True, help="path of the side channel's socket")
    options = parser.parse_args()
    peer = Gloo(options.rank, options.size, options.store)
    rounds.serve(peer, rounds.SideChannel(options.rank, options.size, options.side))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
