"""Predicts the sales of made-up shops by a Keras model with embeddings, from tables to predictions on Spark.

    python examples/spark/sales_keras.py --num-proc 2 --master 'local-cluster[2,1,1024]'

Trains on the first days and is tested on the last ones. Without --master, Spark's own settings say where it runs.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import keras
import made_sales
from pyspark.sql import SparkSession

from corro.spark.common.store import Store
from corro.spark.keras import KerasEstimator


def network() -> Any:
    layers = keras.layers
    categories = {name: keras.Input((1,), dtype="int64", name=name) for name in made_sales.CATEGORIES}
    numbers = keras.Input((len(made_sales.NUMBERS),), name="numbers")
    known = [
        layers.Flatten()(layers.Embedding(made_sales.CATEGORIES[name], 4)(given)) for name, given in categories.items()
    ]
    hidden = layers.Dense(32, activation="relu")(layers.Concatenate()([*known, numbers]))
    # What is learned is how far a shop is from the mean of all.
    sold = layers.Dense(1, bias_initializer=keras.initializers.Constant(8.5), name="log_sold")(hidden)
    return keras.Model([*categories.values(), numbers], sold)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", help="where Spark runs")
    parser.add_argument("--num-proc", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--store", help="a folder that all executors reach; a temporary one unless given")
    options = parser.parse_args()
    builder = SparkSession.builder.appName("corro: sales, Keras")
    spark = (builder.master(options.master) if options.master else builder).getOrCreate()
    rows = made_sales.prepared(*made_sales.tables(spark)).cache()
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        estimator = KerasEstimator(
            model=network(),
            optimizer=keras.optimizers.Adam(2e-3),
            loss="mse",
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
