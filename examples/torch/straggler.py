"""What staleness is for: ranks whose steps now and then take six times as long, with servers in rounds and with bounds.

    corro run -np 4 examples/torch/straggler.py

In rounds all wait for whoever is late. With a bound of three steps, most hiccups are over before anybody has to wait. A rank
that is *always* slow would slow all down at every bound.
"""

from __future__ import annotations

import argparse
import random
import time

import torch

import corro.torch as hvd


def train(staleness: int | None, steps: int, step_seconds: float) -> tuple[float, float]:
    """Steps per second of this rank, and how far the model is from the truth."""
    torch.manual_seed(1)
    model = torch.nn.Linear(16, 1)
    truth = torch.linspace(-1, 1, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), mode="ps", staleness=staleness)
    data = torch.Generator().manual_seed(hvd.rank())
    chance = random.Random(hvd.rank())
    hvd.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        time.sleep(step_seconds * (6 if chance.random() < 0.05 else 1))
        x = torch.randn(32, 16, generator=data)
        optimizer.zero_grad()
        (model(x)[:, 0] - x @ truth).square().mean().backward()
        optimizer.step()
    hvd.barrier()
    return steps / (time.perf_counter() - begin), float((model.weight[0].detach() - truth).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-milliseconds", type=float, default=10)
    arguments = parser.parse_args()
    hvd.init()
    for staleness in (0, 1, 3, 10):
        rate, error = train(staleness, arguments.steps, arguments.step_milliseconds / 1000)
        if hvd.rank() == 0:
            print(f"staleness {staleness}: {rate:.1f} steps/s, off by {error:.3f} at last")


if __name__ == "__main__":
    main()
