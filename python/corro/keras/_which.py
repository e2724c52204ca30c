"""The Keras that `corro.keras` is for."""

from __future__ import annotations

from typing import Any

from corro._keras.installed import keras_for_any_backend

keras: Any = keras_for_any_backend()
