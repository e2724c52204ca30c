"""Recognizes made images of digits, in the manner of MNIST: a convolutional net of PyTorch's and `TorchEstimator`.

    spark-submit examples/spark/digits_torch.py --num-proc 2

Images are arrays of 64 numbers in a DataFrame; `input_shapes` says that they are 8 x 8 pixels.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import numpy as np
import torch
from pyspark.sql import SparkSession, functions
from torch import nn

from corro.spark.common.store import Store
from corro.spark.torch import TorchEstimator


def made_digits(count: int) -> list[tuple[list[float], int]]:
    """Ten drawings of random strokes, moved by a pixel at most and covered with noise."""
    chance = np.random.default_rng(3)
    drawings = chance.random((10, 6, 6)) > 0.6
    images = []
    for number in range(count):
        digit = number % 10
        image = chance.normal(0, 0.15, (8, 8))
        down, right = chance.integers(0, 3, 2)
        image[down : down + 6, right : right + 6] += drawings[digit]
        images.append((image.ravel().tolist(), digit))
    return images


def made_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def accuracy(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == label).float().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-proc", type=int, help="training processes; all slots of Spark, unless given")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--store", help="a folder that driver and executors share")
    chosen = parser.parse_args()
    spark = SparkSession.builder.appName("digits").getOrCreate()
    frame = spark.createDataFrame(made_digits(chosen.rows), "image array<float>, digit long")
    train, test = frame.randomSplit([0.9, 0.1], seed=1)

    model = made_model()
    estimator = TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.002),
        loss=nn.CrossEntropyLoss(),
        metrics=[accuracy],
        input_shapes=[[-1, 1, 8, 8]],
        feature_cols=["image"],
        label_cols=["digit"],
        store=Store.create(chosen.store or tempfile.mkdtemp(prefix="corro-digits-")),
        num_proc=chosen.num_proc,
        validation=0.1,
        batch_size=50,
        epochs=chosen.epochs,
        random_seed=1,
    )
    trained: Any = estimator.fit(train)
    best = functions.expr("array_position(digit__output, array_max(digit__output)) - 1")
    found = trained.transform(test).withColumn("guess", best)
    right = found.filter("guess = digit").count() / found.count()
    print(f"accuracy on test rows: {100 * right:.1f} %")
    spark.stop()


if __name__ == "__main__":
    main()
