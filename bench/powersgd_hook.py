#!/usr/bin/env python3
"""PowerSGD beside torch's own: Corro's `powersgd` and DDP's `powerSGD_hook` over Gloo, one model, one rank, by turns.

    corro run -np 2 python bench/powersgd_hook.py [--rank 4] [--steps 200]

Both begin with full gradients for the same number of steps. The model and its data are made up: digits-like images from a
teacher that is a little larger than what learns from it. Prints milliseconds of a step (median of rounds that alternate)
and the mean loss of each tenth of the steps. Ranks of one host compress what they tell each other, as DDP's do.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ["CORRO_COMPRESS_INSIDE"] = "1"

import torch
import torch.distributed as dist
from python_ops import start_store
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.functional import cross_entropy

import corro.torch as hvd

START = 10
ROUND = 10


def layers(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def batches(seed: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Images of this rank, and what the teacher, the same for all, calls them."""
    torch.manual_seed(1)
    teacher = layers(256)
    images = torch.Generator().manual_seed(seed)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(32, 784, generator=images)
        with torch.no_grad():
            return x, teacher(x).argmax(1)

    return draw


def by_corro(model: nn.Module, rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    compression = hvd.Compression.powersgd(rank=rank, start=START)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)


def by_ddp(model: nn.Module, rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    # One bucket: with several, torch's hook starts its second collectives in whatever order the first ones end, and Gloo
    # mistakes one for the other ("collective mismatch").
    called = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1024)
    state = powersgd.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=START)
    called.register_comm_hook(state, powersgd.powerSGD_hook)
    return called, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo", store=start_store(hvd, dist), rank=hvd.rank(), world_size=hvd.size())
    torch.manual_seed(0)
    start = layers(1024)
    ways = {
        "none": (one := copy.deepcopy(start), torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9)),
        "corro": by_corro(copy.deepcopy(start), options.rank),
        "ddp": by_ddp(copy.deepcopy(start), options.rank),
    }
    draws = {way: batches(100 + hvd.rank()) for way in ways}
    losses: dict[str, list[float]] = {way: [] for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(options.steps // ROUND):
        for way, (model, optimizer) in ways.items():
            hvd.barrier()
            began = time.perf_counter()
            for _ in range(ROUND):
                x, y = draws[way]()
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses[way].append(loss.item())
            seconds[way].append((time.perf_counter() - began) / ROUND)
    means = {way: hvd.allreduce(torch.tensor(of), name=f"losses.{way}").tolist() for way, of in losses.items()}
    if hvd.rank() == 0:
        # The first rounds have full gradients, and warm up.
        ms = {way: statistics.median(of[2:]) * 1e3 for way, of in seconds.items()}
        tenth = options.steps // 10
        for way, of in means.items():
            curve = " ".join(f"{statistics.mean(of[i : i + tenth]):.3f}" for i in range(0, len(of), tenth))
            print(f"{way:>6} {ms[way]:7.1f} ms a step; loss {curve}")
        added = {way: ms[way] - ms["none"] for way in ("corro", "ddp")}
        print(f"a step of ddp takes {ms['ddp'] / ms['corro']:.2f} times as long; what is added, {added['ddp'] / added['corro']:.1f} times")
    hvd.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
