"""How many images per second a small residual network trains on random images.

corro run -np 2 python examples/keras/synthetic_benchmark.py
"""

from __future__ import annotations

import keras
import measuring
from keras import layers

import corro.keras as hvd


def block(x: keras.KerasTensor, filters: int, stride: int) -> keras.KerasTensor:
    """Two convolutions and a way around them."""
    y = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
    y = layers.ReLU()(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(y))
    around = layers.Conv2D(filters, 1, stride, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.Add()([y, around]))


def network() -> keras.Model:
    images = layers.Input((224, 224, 3))
    x = layers.Conv2D(32, 7, 4, padding="same")(images)
    for filters in (64, 128, 256):
        x = block(x, filters, 2)
    return keras.Model(images, layers.Dense(1000)(layers.GlobalAveragePooling2D()(x)))


def main() -> None:
    chosen = measuring.options(__doc__, batch_size=16)
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    measuring.train(network(), keras.optimizers.SGD(0.01), chosen, each=False)


if __name__ == "__main__":
    main()
