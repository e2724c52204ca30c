"""Predicts the sales of shops from tables, in the manner of Rossmann's: made data, a Spark pipeline, and `KerasEstimator`.

    spark-submit examples/spark/sales_keras.py --num-proc 2

Categories (shop, weekday) become numbers by Spark and vectors by the model; the label is the logarithm of the sales.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from typing import Any

import numpy as np
from pyspark.ml import Pipeline
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.sql import SparkSession, functions

from corro.spark.common.store import Store
from corro.spark.keras import KerasEstimator

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def made_sales(rows: int) -> list[tuple[str, str, bool, float, float]]:
    """Shop, weekday, whether there is a promotion, how far a competitor is, and what was sold."""
    chance = np.random.default_rng(7)
    shops, days = chance.integers(0, 20, rows), chance.integers(0, 7, rows)
    promoted, distance = chance.random(rows) < 0.4, chance.random(rows) * 10
    size = np.linspace(0.5, 2.0, 20)[shops]
    sales = 4000 * size * (1 + 0.3 * promoted) * (0.8 + 0.05 * days) * (1 + 0.02 * distance)
    sales *= np.exp(chance.normal(0, 0.03, rows))
    return [
        (f"shop {shop}", DAYS[day], bool(promo), float(far), float(sold))
        for shop, day, promo, far, sold in zip(shops, days, promoted, distance, sales, strict=True)
    ]


def made_model() -> Any:
    import keras

    inputs = [
        keras.Input((1,), name="shop_number"),
        keras.Input((1,), name="day_number"),
        keras.Input((2,), name="numbers"),
    ]
    shop = keras.layers.Flatten()(keras.layers.Embedding(20, 4)(inputs[0]))
    day = keras.layers.Flatten()(keras.layers.Embedding(7, 3)(inputs[1]))
    joined = keras.layers.Concatenate()([shop, day, inputs[2]])
    hidden = keras.layers.Dense(32, activation="relu")(joined)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-proc", type=int, help="training processes; all slots of Spark, unless given")
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--store", help="a folder that driver and executors share")
    chosen = parser.parse_args()
    spark = SparkSession.builder.appName("sales").getOrCreate()

    names = ["shop", "day", "promotion", "distance", "sales"]
    frame = spark.createDataFrame(made_sales(chosen.rows), names)
    frame = frame.withColumn("log_sales", functions.log("sales")).withColumn(
        "promoted", functions.expr("int(promotion)")
    )
    train, test = frame.randomSplit([0.9, 0.1], seed=1)

    import keras

    estimator = KerasEstimator(
        model=made_model(),
        optimizer=keras.optimizers.Adam(0.003),
        loss="mse",
        metrics=["mae"],
        store=Store.create(chosen.store or tempfile.mkdtemp(prefix="corro-sales-")),
        num_proc=chosen.num_proc,
        feature_cols=["shop_number", "day_number", "numbers"],
        label_cols=["log_sales"],
        validation=0.1,
        batch_size=64,
        epochs=chosen.epochs,
        random_seed=1,
    )
    pipeline = Pipeline(
        stages=[
            StringIndexer(inputCol="shop", outputCol="shop_number"),
            StringIndexer(inputCol="day", outputCol="day_number"),
            VectorAssembler(inputCols=["promoted", "distance"], outputCol="numbers"),
            estimator,
        ]
    )
    model = pipeline.fit(train)
    found = model.transform(test).select("log_sales", "log_sales__output").collect()
    off = [math.exp(guess - right) - 1 for right, guess in found]
    print(f"error of {len(off)} test rows: {100 * math.sqrt(sum(e * e for e in off) / len(off)):.1f} % (RMSPE)")
    spark.stop()


if __name__ == "__main__":
    main()
