"""Keras' models, optimizers, losses and metrics on their way to other processes, as Keras itself saves them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["as_config", "from_config", "model_bytes", "model_of"]

_MARK = "__corro_keras__"


def model_bytes(model: Any) -> bytes:
    """A model with its weights, and with its optimizer if it was compiled with one."""
    with tempfile.TemporaryDirectory(prefix="corro-keras-") as folder:
        path = Path(folder, "model.keras")
        model.save(path)
        return path.read_bytes()


def model_of(content: bytes, custom_objects: Mapping[str, Any] | None) -> Any:
    """The model, not compiled."""
    import keras

    with tempfile.TemporaryDirectory(prefix="corro-keras-") as folder:
        path = Path(folder, "model.keras")
        path.write_bytes(content)
        return keras.saving.load_model(path, custom_objects=dict(custom_objects or {}), compile=False)


def as_config(what: Any) -> Any:
    """Losses, metrics and optimizers, in lists and dictionaries too, as what Keras makes them from; all else as it is."""
    import keras

    if isinstance(what, (list, tuple)):
        return [as_config(one) for one in what]
    if isinstance(what, Mapping):
        return {name: as_config(one) for name, one in what.items()}
    if isinstance(what, (keras.losses.Loss, keras.metrics.Metric, keras.optimizers.Optimizer)):
        return {_MARK: keras.saving.serialize_keras_object(what)}
    return what


def from_config(what: Any, custom_objects: Mapping[str, Any] | None) -> Any:
    """What `as_config` was given."""
    import keras

    if isinstance(what, list):
        return [from_config(one, custom_objects) for one in what]
    if not isinstance(what, Mapping):
        return what
    if _MARK in what:
        return keras.saving.deserialize_keras_object(what[_MARK], custom_objects=dict(custom_objects or {}))
    return {name: from_config(one, custom_objects) for name, one in what.items()}
