"""Predicts clicks: sharded tables of users and items beside a dense model whose gradients are averaged as always.

    corro run -np 2 examples/torch/clicks.py --rows 1000000

Each rank has its part of the tables, and looks up what the others have; the popular items are looked up by all.
"""

from __future__ import annotations

import argparse
import time

import torch

import corro.torch as hvd

WIDTH = 16


def popular(count: int, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Ids as people choose them: few of them make up most."""
    return (rows ** torch.rand(count, 1, generator=generator)).long().clamp_(1, rows) - 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=512)
    arguments = parser.parse_args()
    hvd.init()
    torch.manual_seed(1)
    tables = hvd.ShardedEmbeddingBag(
        {"user": (arguments.rows, WIDTH), "item": (arguments.rows, WIDTH)},
        optimizer=hvd.sparse.Adagrad(lr=0.3, rowwise=True),
        init=lambda weight: torch.nn.init.normal_(weight, std=0.1),
    )
    top = torch.nn.Sequential(torch.nn.Linear(2 * WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    hvd.broadcast_parameters(top.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(top.parameters(), 0.01), top.named_parameters())

    # What is to be learnt: some users like items with even numbers, the others those with odd ones.
    data = torch.Generator().manual_seed(hvd.rank())
    begin = time.perf_counter()
    right: list[torch.Tensor] = []
    for step in range(arguments.steps):
        user, item = (popular(arguments.batch_size, arguments.rows, data) for _ in range(2))
        clicked = ((user % 3 == 0) == (item % 2 == 0)).float()
        vectors = tables({"user": user, "item": item})
        score = top(torch.cat([vectors["user"], vectors["item"]], 1))
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(score, clicked).backward()
        optimizer.step()
        right.append(((score > 0) == (clicked > 0.5)).float().mean())
        if step % 50 == 49 and hvd.rank() == 0:
            print(f"step {step + 1}: {100 * torch.stack(right[-50:]).mean():.1f} % right")
    samples = arguments.steps * arguments.batch_size * hvd.size() / (time.perf_counter() - begin)
    learnt = hvd.allreduce(torch.stack(right[-50:]).mean())
    if hvd.rank() == 0:
        here = sum(part.nbytes for part in tables.buffers())
        print(
            f"{samples:.0f} samples/s in all, {here / 2**20:.1f} MiB of tables a rank, {100 * learnt:.1f} % right at last"
        )


if __name__ == "__main__":
    main()
