"""Trains a small convolutional network of PyTorch's on made-up images of digits, and predicts with it, on Spark.

    python examples/spark/images_torch.py --num-proc 2 --master 'local-cluster[2,1,1024]'

Without --master, Spark's own settings say where it runs; `spark-submit --py-files examples/spark/made_images.py` works too.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import made_images
import torch
from pyspark.sql import SparkSession

from corro.spark.common.store import Store
from corro.spark.torch import TorchEstimator


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 10),
    )


def loss(output: Any, digit: Any, reduction: str = "mean") -> Any:
    return torch.nn.functional.cross_entropy(output, digit.long(), reduction=reduction)


def accuracy(output: Any, digit: Any) -> Any:
    return (output.argmax(1) == digit).float().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", help="where Spark runs")
    parser.add_argument("--num-proc", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--store", help="a folder that all executors reach; a temporary one unless given")
    options = parser.parse_args()
    builder = SparkSession.builder.appName("corro: images, torch")
    spark = (builder.master(options.master) if options.master else builder).getOrCreate()
    torch.manual_seed(0)
    model = network()
    with tempfile.TemporaryDirectory() as folder:
        estimator = TorchEstimator(
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
            loss=loss,
            metrics={"accuracy": accuracy},
            store=Store.create(options.store or folder),
            feature_cols=["image"],
            label_cols=["digit"],
            input_shapes=[[-1, 1, 28, 28]],
            validation=0.1,
            batch_size=32,
            epochs=options.epochs,
            num_proc=options.num_proc,
            random_seed=0,
        )
        trained = estimator.fit(made_images.frame(spark, options.rows))
        right = made_images.accuracy(trained.transform(made_images.frame(spark, 1000, seed=1)))
    print(f"ranks {options.num_proc}   test accuracy {right:.2%}")
    spark.stop()


if __name__ == "__main__":
    main()
