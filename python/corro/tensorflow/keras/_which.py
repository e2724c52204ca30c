"""The Keras that `tf.keras` stands for."""

from __future__ import annotations

from typing import Any

from corro._keras.installed import keras_of_tensorflow

keras: Any = keras_of_tensorflow()
