"""Predicts the sales of made-up shops by a PyTorch model with embeddings, from tables to predictions on Spark.

    python examples/spark/sales_torch.py --num-proc 2 --master 'local-cluster[2,1,1024]'

Trains on the first days and is tested on the last ones. Without --master, Spark's own settings say where it runs.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import made_sales
import torch
from pyspark.sql import SparkSession

from corro.spark.common.store import Store
from corro.spark.torch import TorchEstimator


class Sales(torch.nn.Module):
    def __init__(self, categories: list[int], numbers: int) -> None:
        super().__init__()
        self.embeddings = torch.nn.ModuleList([torch.nn.Embedding(count, 4) for count in categories])
        last = torch.nn.Linear(32, 1)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4 * len(categories) + numbers, 32), torch.nn.ReLU(), last)
        # What is learned is how far a shop is from the mean of all.
        torch.nn.init.constant_(last.bias, 8.5)

    def forward(self, *columns: Any) -> Any:
        *categories, numbers = columns
        known = [embedding(column) for embedding, column in zip(self.embeddings, categories, strict=True)]
        return self.layers(torch.cat([*known, numbers], dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", help="where Spark runs")
    parser.add_argument("--num-proc", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--store", help="a folder that all executors reach; a temporary one unless given")
    options = parser.parse_args()
    builder = SparkSession.builder.appName("corro: sales, torch")
    spark = (builder.master(options.master) if options.master else builder).getOrCreate()
    rows = made_sales.prepared(*made_sales.tables(spark)).cache()
    torch.manual_seed(0)
    model = Sales(list(made_sales.CATEGORIES.values()), len(made_sales.NUMBERS))
    with tempfile.TemporaryDirectory() as folder:
        estimator = TorchEstimator(
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
            loss=torch.nn.MSELoss(),
            store=Store.create(options.store or folder),
            feature_cols=[*made_sales.CATEGORIES, "numbers"],
            label_cols=["log_sold"],
            validation=0.1,
            batch_size=32,
            epochs=options.epochs,
            num_proc=options.num_proc,
            random_seed=0,
        )
        trained = estimator.fit(rows.filter("day < 100"))
        error = made_sales.error_in_percent(trained.transform(rows.filter("day >= 100")))
    print(f"ranks {options.num_proc}   sales of the last days predicted within {error:.1f} %")
    spark.stop()


if __name__ == "__main__":
    main()
