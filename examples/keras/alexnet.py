"""AlexNet on generated images of ImageNet's shape, with the time of every iteration.

    corro run -np 2 python examples/keras/alexnet.py

61 million parameters, 244 MB of gradients in every step: more a test of communication than of arithmetic.
"""

from __future__ import annotations

import keras
import measuring
from keras import layers

import corro.keras as hvd


def alexnet(classes: int = 1000) -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((224, 224, 3)),
            layers.ZeroPadding2D(2),
            *(layers.Conv2D(64, 11, 4, activation="relu"), layers.MaxPooling2D(3, 2)),
            *(layers.Conv2D(192, 5, padding="same", activation="relu"), layers.MaxPooling2D(3, 2)),
            layers.Conv2D(384, 3, padding="same", activation="relu"),
            layers.Conv2D(256, 3, padding="same", activation="relu"),
            *(layers.Conv2D(256, 3, padding="same", activation="relu"), layers.MaxPooling2D(3, 2)),
            layers.Flatten(),
            *(layers.Dropout(0.5), layers.Dense(4096, activation="relu")),
            *(layers.Dropout(0.5), layers.Dense(4096, activation="relu")),
            layers.Dense(classes),
        ]
    )


def main() -> None:
    chosen = measuring.options(__doc__, batch_size=8)
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    measuring.train(alexnet(), keras.optimizers.SGD(0.01, momentum=0.9), chosen, each=True)


if __name__ == "__main__":
    main()
