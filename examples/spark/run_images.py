"""Trains a small network of PyTorch's by a loop of your own in Spark's tasks; with --elastic, on as many as come and go.

    python examples/spark/run_images.py --num-proc 2 --master 'local-cluster[2,1,1024]'

Without --master, Spark's own settings say where it runs.
"""

from __future__ import annotations

import argparse
from typing import Any

import made_images
from pyspark.sql import SparkSession

import corro.spark


def train(pictures: Any, digits: Any, epochs: int) -> float:
    import torch

    import corro.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = torch.from_numpy(pictures).reshape(-1, 1, 28, 28), torch.from_numpy(digits)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 10),
    )
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 4e-3), model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    known = len(images) * 4 // 5  # the others are for the test

    @hvd.elastic.run
    def loop(state: Any) -> None:
        loss = torch.zeros(())
        while state.epoch < epochs:
            # As many batches on each rank, so that all take the same steps.
            share = torch.randperm(known, generator=torch.Generator().manual_seed(state.epoch))
            share = share[: known // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]
            for batch in share.split(32):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                optimizer.step()
            state.epoch += 1
            if hvd.rank() == 0:
                print(f"epoch {state.epoch} on {hvd.size()} ranks: loss {loss.item():.3f}", flush=True)
            state.commit()

    loop(state)
    with torch.no_grad():
        right = model(images[known:]).argmax(1) == labels[known:]
    return float(right.float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", help="where Spark runs")
    parser.add_argument("--num-proc", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--elastic", action="store_true", help="go on when executors are lost")
    options = parser.parse_args()
    builder = SparkSession.builder.appName("corro: images, run")
    spark = (builder.master(options.master) if options.master else builder).getOrCreate()
    args = (*made_images.images(2500), options.epochs)
    if options.elastic:
        accuracies = corro.spark.run_elastic(train, args, num_proc=options.num_proc, min_num_proc=1)
    else:
        accuracies = corro.spark.run(train, args, num_proc=options.num_proc)
    print(f"ranks {len(accuracies)}   test accuracy {accuracies[0]:.2%}")
    spark.stop()


if __name__ == "__main__":
    main()
