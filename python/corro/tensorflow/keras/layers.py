"""Layers of `tf.keras` that know of other ranks."""

from __future__ import annotations

from corro._keras.embedding import layer_class
from corro.tensorflow.keras._which import keras as _keras

__all__ = ["ShardedEmbedding"]

ShardedEmbedding = layer_class(_keras)
