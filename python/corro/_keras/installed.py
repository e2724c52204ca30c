"""Which Keras is meant: Keras 3, or the old one.

The package `tf_keras` keeps that one alive, and TF_USE_LEGACY_KERAS=1 asks for it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from corro._native import foreign


def keras_for_any_backend() -> Any:
    """The Keras of `corro.keras`: the old one where TensorFlow has been told to use it, else Keras 3."""
    if _old_one_is_wanted():
        return _keras2()
    try:
        keras: Any = importlib.import_module("keras")
    except ImportError as error:
        raise ImportError(
            f"corro.keras needs Keras 3, which is not installed here. Install it with `pip install keras`. ({error})"
        ) from error
    if is_keras2(keras):
        raise ImportError(f"corro.keras needs Keras 3, but {keras.__version__} is installed: `pip install -U keras`.")
    return keras


def keras_of_tensorflow() -> Any:
    """The Keras that `tf.keras` stands for."""
    import tensorflow as tf

    if is_keras2(tf.keras):
        return tf.keras
    keras: Any = importlib.import_module("keras")
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ImportError(
            f"corro.tensorflow.keras needs Keras's TensorFlow backend, but Keras runs on {backend!r}. "
            f"Import corro.keras, or unset KERAS_BACKEND."
        )
    return keras


def keras_of(optimizer: Any, otherwise: Any) -> Any:
    """The Keras that an optimizer comes from. Both may be there, whichever one a front was made for."""
    packages = {kind.__module__.split(".")[0] for kind in type(optimizer).__mro__}
    if "tf_keras" in packages:
        return otherwise if is_keras2(otherwise) else _keras2()
    if "keras" in packages:
        return importlib.import_module("keras") if is_keras2(otherwise) else otherwise
    return otherwise


def is_keras2(keras: Any) -> bool:
    """Whether this is the old Keras."""
    # What `tf.keras` then stands for is a part of that package without a version of its own.
    version = getattr(keras, "__version__", None)
    return version is None or int(version.split(".")[0]) < 3


def _old_one_is_wanted() -> bool:
    # As TensorFlow reads it. Keras 3 on another backend has nothing to do with `tf.keras`.
    asked = foreign("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    on_tensorflow = foreign("KERAS_BACKEND") in (None, "tensorflow")
    return asked and on_tensorflow and importlib.util.find_spec("tf_keras") is not None


def _keras2() -> Any:
    import tensorflow as tf

    return tf.keras if is_keras2(tf.keras) else importlib.import_module("tf_keras")
