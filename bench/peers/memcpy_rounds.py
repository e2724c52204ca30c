"""The machine's limit as a server of rounds: every rank copies a buffer of the asked size, nobody talks to anybody.

One rank gives the speed of a single core, two ranks at once what they leave each other.
"""

from __future__ import annotations

import argparse

import numpy as np

import rounds


class Memcpy:
    sums = False

    def __init__(self, rank: int, size: int, channel: rounds.SideChannel) -> None:
        self.rank = rank
        self.size = size
        self.version = f"numpy {np.__version__} copyto"
        self.channel = channel
        self.source = self.target = np.zeros(1, np.float32)

    def load(self, buffer: np.ndarray) -> None:
        self.target = buffer
        self.source = np.ones_like(buffer)

    def barrier(self) -> None:
        self.channel.gather(b"here")
        self.channel.broadcast(b"go")

    def step(self) -> None:
        np.copyto(self.target, self.source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--side", required=True, help="path of the side channel's socket")
    options = parser.parse_args()
    channel = rounds.SideChannel(options.rank, options.size, options.side)
    rounds.serve(Memcpy(options.rank, options.size, channel), channel)


if __name__ == "__main__":
    main()
