"""The Keras that `tf.keras` stands for."""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

from corro._keras.backends import is_keras2

keras: Any = tf.keras
if not is_keras2(keras):
    keras = importlib.import_module("keras")
    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"corro.tensorflow.keras needs Keras's TensorFlow backend, but Keras runs on {keras.backend.backend()!r}. "
            f"Import corro.keras, or unset KERAS_BACKEND."
        )
