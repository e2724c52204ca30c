"""The same aggregation under the name it has for eager optimizers."""

from __future__ import annotations

from corro.tensorflow.gradient_aggregation import LocalGradientAggregationHelper


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """Adds gradients up in variables; see `LocalGradientAggregationHelper`."""


__all__ = ["LocalGradientAggregationHelperEager"]
