"""AlexNet on generated images of ImageNet's shape, with the time of every iteration.

    corro run -np 2 python examples/tensorflow/alexnet.py

62 million parameters, 250 MB of gradients in every step: more a test of communication than of arithmetic.
"""

from __future__ import annotations

import measuring
import tensorflow as tf

import corro.tensorflow as hvd


def alexnet(classes: int = 1000) -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input([224, 224, 3]),
            *(layers.Conv2D(64, 11, 4, activation="relu"), layers.MaxPool2D(3, 2)),
            *(layers.Conv2D(192, 5, padding="same", activation="relu"), layers.MaxPool2D(3, 2)),
            layers.Conv2D(384, 3, padding="same", activation="relu"),
            layers.Conv2D(256, 3, padding="same", activation="relu"),
            *(layers.Conv2D(256, 3, padding="same", activation="relu"), layers.MaxPool2D(2, 2)),
            layers.Flatten(),
            *(layers.Dropout(0.5), layers.Dense(4096, activation="relu")),
            *(layers.Dropout(0.5), layers.Dense(4096, activation="relu")),
            layers.Dense(classes),
        ]
    )


def main() -> None:
    chosen = measuring.options(__doc__, batch_size=8)
    hvd.init()
    tf.random.set_seed(hvd.rank())
    step = measuring.training_step(alexnet(), tf.keras.optimizers.SGD(0.01, momentum=0.9), chosen)
    # New images each time, as from a data pipeline.
    measuring.measure(lambda: step(*measuring.images_of(chosen)).numpy(), chosen, each=True)


if __name__ == "__main__":
    main()
