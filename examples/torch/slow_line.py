"""Two servers with a slow line between them: what sending fewer bytes brings there, from the mildest way to the strongest.

    corro run -np 2 -H first:1,second:1 python examples/torch/slow_line.py

Trains a small model from the same start by each way in turn: gradients as they are, `compression="auto"`, which says what
it has measured and decided, int8, and DiLoCo, where ranks meet only now and then. Where all ranks are on one host, set
CORRO_COMPRESS_INSIDE=1 to see every way at work; but there the line is as fast as memory.
"""

from __future__ import annotations

import argparse
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from fewer_bytes import Digits, bytes_sent
from torch import nn

import corro.torch as hvd

WAYS = ("none", "auto", "int8", "DiLoCo")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--steps", type=int, default=200, help="of each way")
    parser.add_argument("--width", type=int, default=512, help="of the model; 512 are 1.2 MB of gradients a step")
    parser.add_argument("--every", type=int, default=20, help="DiLoCo: steps between meetings")
    return parser.parse_args()


def prepare(way: str, model: nn.Module, every: int) -> tuple[torch.optim.Optimizer, AbstractContextManager[Any]]:
    """The optimizer, and what must be open while it steps. Tensors are named after the way: so reports tell them apart."""
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    if way == "DiLoCo":
        # In so short a training the default outer optimizer, which has momentum, would go too far.
        outer = hvd.Nesterov(1.0, 0.0)
        return optimizer, hvd.DiLoCo(model, optimizer, outer, every=every, fragments=2, compression="int8", name=way)
    named = [(f"{way}.{name}", p) for name, p in model.named_parameters()]
    compression = hvd.Compression.none if way == "none" else way
    return hvd.DistributedOptimizer(optimizer, named, compression=compression), nullcontext()


def train(way: str, task: Digits, options: argparse.Namespace) -> None:
    torch.manual_seed(hvd.rank())
    width = options.width
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer, training = prepare(way, model, options.every)
    began = 0.0
    with training:
        for step in range(options.steps):
            # From the second step on: in the first, auto measures.
            began = time.perf_counter() if step == 1 else began
            optimizer.zero_grad()
            task.loss(model).backward()
            optimizer.step()
    seconds = time.perf_counter() - began
    with torch.no_grad():
        loss = task.test_loss(model)
    if hvd.rank() == 0:
        sent, _ = bytes_sent(model, options.steps, way == "DiLoCo", f"{way}.")
        rate, kilobytes = (options.steps - 1) / seconds, sent / options.steps / 1e3
        print(f"{way:8}{rate:8.1f} steps/s{kilobytes:10.1f} kB sent a step   test loss {loss:.3f}", flush=True)


def main() -> None:
    options = parse()
    hvd.init()
    torch.set_num_threads(1)
    task = Digits(batch_size=32)
    for way in options.ways:
        train(way, task, options)
    hvd.shutdown()


if __name__ == "__main__":
    main()
