"""Batch normalisation with the statistics of all ranks' batches together."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from corro._front import basics
from corro._front.arguments import Average
from corro.tensorflow.mpi_ops import _allreduce


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Keras' `BatchNormalization`, whose means and variances are averaged over the ranks. Every rank has the same weight.

    Arguments are those of Keras' layer. Raises `ValueError` for `fused=True`.

    Example:
        >>> layer = hvd.SyncBatchNormalization(momentum=0.0)
        >>> _ = layer(tf.fill([4, 1], float(hvd.rank())), training=True)
        >>> layer.moving_mean.numpy()
        array([0.5], dtype=float32)
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if _chooses_a_kernel:
            kwargs["fused"] = False
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        # Keras 3 says (mask), Keras 2 says (reduction_axes, keep_dims, mask).
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if not basics.is_initialized() or (basics.size() == 1 and not basics.elastic_enabled()):
            return mean, variance
        # The mean of the squares can be averaged; a variance, which is about a rank's own mean, cannot.
        together = _allreduce(tf.stack([mean, variance + tf.square(mean)]), op=Average)
        mean, square = tf.unstack(together)
        return mean, tf.maximum(square - tf.square(mean), 0)


# Keras 2, whose fused kernel computes its own moments; Keras 3 has no such choice.
_chooses_a_kernel = hasattr(tf.keras.layers.BatchNormalization, "_fused_can_be_used")
