#!/usr/bin/env python3
"""An epoch by `corro.spark.run` beside one by Spark's own `TorchDistributor`.

    .venv-test-spark/bin/python bench/spark_torch.py [--rounds 3] [--width 512]

Both on the same warm application (`local-cluster`, two executors with a slot each), in turn, one thread a rank, the same
model (a perceptron of three layers), rows and order of rows. `TorchDistributor` trains by DistributedDataParallel over Gloo.
The first epoch is not counted; an epoch takes as long as on the slower rank; a round's figure is the median of its epochs.
Both must come to the same weights.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

from spark_session import session

TASKS = 2


def train(by: str, width: int, epochs: int) -> tuple[list[float], float]:
    """The seconds of each epoch but the first, as the slower rank has it, and the sum of the weights."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()]
    model: torch.nn.Module = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.01)
    if by == "corro":
        import corro.torch as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    else:
        torch.distributed.init_process_group("gloo")
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        model = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(1)
    images, labels = torch.randn(4096, width), torch.randint(10, (4096,))
    images, labels = images[rank::size].clone(), labels[rank::size].clone()
    seconds = []
    for _ in range(epochs + 1):
        began = time.perf_counter()
        for at in range(0, len(images), 64):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[at : at + 64]), labels[at : at + 64])
            loss.backward()
            optimizer.step()
        seconds.append(time.perf_counter() - began)
    weights = sum(float(weight.detach().double().sum()) for weight in model.parameters())
    mine = torch.tensor(seconds[1:])
    if by == "corro":
        slower = hvd.allreduce(mine, op=hvd.Max, name="seconds")
        hvd.shutdown()
    else:
        slower = mine
        torch.distributed.all_reduce(slower, op=torch.distributed.ReduceOp.MAX)
        torch.distributed.destroy_process_group()
    return slower.tolist(), weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    from pyspark.ml.torch.distributor import TorchDistributor

    import corro.spark

    spark = session("spark_torch", TASKS)
    given = (options.width, options.epochs)
    contestants = {
        "TorchDistributor": lambda: TorchDistributor(TASKS, local_mode=False, use_gpu=False).run(train, "gloo", *given),
        "corro": lambda: corro.spark.run(train, ("corro", *given), num_proc=TASKS)[0],
    }
    found: dict[str, list[float]] = {name: [] for name in contestants}
    learned: dict[str, float] = {}
    for number in range(options.rounds):
        for name, fit in contestants.items():
            began = time.time()
            seconds, learned[name] = fit()
            found[name].append(statistics.median(seconds))
            told = {
                "round": number,
                "by": name,
                "epoch": round(found[name][-1], 4),
                "whole": round(time.time() - began, 2),
            }
            print(json.dumps(told), flush=True)
    one, other = learned.values()
    assert abs(one - other) < 1e-3 * abs(one), f"they have not learned the same: {learned}"
    ratios = [theirs / ours for theirs, ours in zip(*found.values(), strict=True)]
    medians = {name: round(statistics.median(values), 4) for name, values in found.items()}
    print(
        json.dumps({"seconds an epoch": medians, "ratios": [round(r, 2) for r in ratios], "load": os.getloadavg()[0]})
    )
    spark.stop()


if __name__ == "__main__":
    main()
