"""A step of a large embedding on two ranks: sharded, by a dense allreduce, and by an allgather of sparse gradients.

    corro run -np 2 python bench/embeddings.py [--check]

A table of 1 M rows of 64, and 26 x 4096 ids of each rank by Zipf's law. Prints what a step takes (lookup, backward and update; medians of
alternating rounds; the gradient is given, as from a model above it), how many bytes a rank sends to others in it, and how much
memory a rank's table takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import corro.torch as hvd

ROWS, DIM, FEATURES, BATCH = 1_000_000, 64, 26, 4096
GRADIENT = torch.randn(BATCH, FEATURES, DIM, generator=torch.Generator().manual_seed(1))


def resident() -> int:
    """Bytes of memory that this process has."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def zipf(seed: int) -> torch.Tensor:
    """Ids with the exponent 1.05: the first are the most popular."""
    weights = np.arange(1, ROWS + 1, dtype=np.float64) ** -1.05
    edges = np.cumsum(weights / weights.sum())
    drawn = np.searchsorted(edges, np.random.default_rng(seed).random((BATCH, FEATURES)))
    return torch.from_numpy(drawn.clip(max=ROWS - 1).astype(np.int64))


class Sharded:
    """Ours. Counts what goes to other ranks as it goes."""

    def __init__(self) -> None:
        before = resident()
        self.table = hvd.ShardedEmbedding(ROWS, DIM, optimizer=hvd.sparse.SGD(lr=0.01), name="bench")
        self.memory = resident() - before

    def step(self, ids: torch.Tensor) -> None:
        self.table(ids).backward(GRADIENT)

    def sent(self, ids: torch.Tensor) -> int:
        """Numbers that this rank asks for, rows that it is asked for, and gradients of what it has asked for."""
        dealt = self.table._shards.deal(torch.unique(ids.reshape(-1)) * self.table._factor % ROWS)
        asks = int(dealt.counts.sum() - dealt.counts[hvd.rank()])
        _, asked = hvd.alltoall(dealt.sent, dealt.counts, "counted")
        gives = int(asked.sum() - asked[hvd.rank()])
        return asks * 8 + gives * DIM * 4 + asks * DIM * 4


class Whole:
    """The whole table on every rank, its gradient dense or sparse."""

    def __init__(self, sparse: bool) -> None:
        self.sparse = sparse
        self.table = torch.nn.Embedding(ROWS, DIM, sparse=sparse)
        plain = torch.optim.SGD(self.table.parameters(), lr=0.01)
        self.optimizer = hvd.DistributedOptimizer(plain, self.table.named_parameters(prefix="s" if sparse else "d"))

    def step(self, ids: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.table(ids).backward(GRADIENT)
        self.optimizer.step()

    def sent(self, ids: torch.Tensor) -> int:
        n = hvd.size()
        if self.sparse:
            # Every rank's rows and their numbers go to all others; torch does not merge those of one id.
            return (n - 1) * ids.numel() * (4 * DIM + 8)
        return 2 * 4 * ROWS * DIM * (n - 1) // n


def seconds(step: Callable[[torch.Tensor], None], ids: torch.Tensor) -> float:
    hvd.barrier()
    begin = time.perf_counter()
    step(ids)
    hvd.barrier()
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed")
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    chosen = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    sharded = Sharded()
    ways = {"sharded": sharded, "dense allreduce": Whole(False), "sparse allgather": Whole(True)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    sent = {name: 0 for name in ways}
    for at in range(chosen.rounds + 1):
        ids = zipf(100 * at + hvd.rank())
        for name, way in ways.items():
            taken = seconds(way.step, ids)
            sent[name] = way.sent(ids)
            if at:  # the first one warms up
                times[name].append(taken)
    if hvd.rank() != 0:
        return 0
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"{hvd.size()} ranks, {ROWS:,} x {DIM}, {FEATURES} x {BATCH} ids of each rank")
    for name in ways:
        print(f"{name:17} {1e3 * medians[name]:9.1f} ms a step   {sent[name] / 1e6:9.2f} MB sent by a rank")
    part = ROWS * DIM * 4 / hvd.size()
    figures = {
        "times fewer bytes than dense allreduce": sent["dense allreduce"] / sent["sharded"],
        "times less time than dense allreduce": medians["dense allreduce"] / medians["sharded"],
        "times fewer bytes than sparse allgather": sent["sparse allgather"] / sent["sharded"],
        "memory of a rank over its part of the table": sharded.memory / part,
    }
    bars = [20.0, 10.0, 2.5, 1.1]
    failed = False
    for (what, value), bar in zip(figures.items(), bars, strict=True):
        met = value <= bar if what.startswith("memory") else value >= bar
        failed |= not met
        print(f"{value:7.2f} {what} (bar {bar}): {'met' if met else 'MISSED'}")
    if chosen.out:
        record = {"seconds": medians, "sent_bytes": sent, "figures": figures, "ranks": hvd.size()}
        chosen.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(failed and chosen.check)


if __name__ == "__main__":
    sys.exit(main())
