"""How many images per second a small residual network trains on random images.

corro run -np 2 python examples/tensorflow/synthetic_benchmark.py
"""

from __future__ import annotations

import measuring
import tensorflow as tf

import corro.tensorflow as hvd


def block(x: tf.Tensor, outputs: int) -> tf.Tensor:
    """Two convolutions and a way around them."""
    layers = tf.keras.layers
    y = layers.Conv2D(outputs, 3, 2, padding="same", use_bias=False)(x)
    y = layers.ReLU()(layers.BatchNormalization()(y))
    y = layers.Conv2D(outputs, 3, padding="same", use_bias=False)(y)
    y = layers.BatchNormalization()(y)
    around = layers.Conv2D(outputs, 1, 2, use_bias=False)(x)
    return layers.ReLU()(layers.Add()([y, around]))


def network() -> tf.keras.Model:
    layers = tf.keras.layers
    images = layers.Input([224, 224, 3])
    x = layers.Conv2D(32, 7, 4, padding="same")(images)
    for outputs in (64, 128, 256):
        x = block(x, outputs)
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(images, layers.Dense(1000)(x))


def main() -> None:
    chosen = measuring.options(__doc__, batch_size=16)
    hvd.init()
    tf.random.set_seed(hvd.rank())
    step = measuring.training_step(network(), tf.keras.optimizers.SGD(0.01), chosen)
    images, labels = measuring.images_of(chosen)
    measuring.measure(lambda: step(images, labels).numpy(), chosen)


if __name__ == "__main__":
    main()
