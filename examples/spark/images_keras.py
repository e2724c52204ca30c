"""Trains a small convolutional network of Keras' on made-up images of digits, and predicts with it, on Spark.

    python examples/spark/images_keras.py --num-proc 2 --master 'local-cluster[2,1,1024]'

Without --master, Spark's own settings say where it runs. The backend of Keras (KERAS_BACKEND) is the driver's.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import keras
import made_images
from pyspark.sql import SparkSession

from corro.spark.common.store import Store
from corro.spark.keras import KerasEstimator


def network() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 5, strides=2, activation="relu"),
            layers.Conv2D(16, 5, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", help="where Spark runs")
    parser.add_argument("--num-proc", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--store", help="a folder that all executors reach; a temporary one unless given")
    options = parser.parse_args()
    builder = SparkSession.builder.appName("corro: images, Keras")
    spark = (builder.master(options.master) if options.master else builder).getOrCreate()
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        estimator = KerasEstimator(
            model=network(),
            optimizer=keras.optimizers.Adam(1e-3),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
            store=Store.create(options.store or folder),
            feature_cols=["image"],
            label_cols=["digit"],
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
