"""The same aggregation under the name it has for eager optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from corro._front.process_sets import ProcessSet, global_process_set
from corro.tensorflow.gradient_aggregation import LocalGradientAggregationHelper


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """`LocalGradientAggregationHelper` under the name it has for eager optimizers.

    Example:
        >>> helper = hvd.LocalGradientAggregationHelperEager(2, lambda gradients, variables: gradients)
        >>> (total,) = helper.compute_gradients([tf.constant(1.5)], [tf.Variable(1.0)])
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Sequence[Any]],
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            *(backward_passes_per_step, allreduce_func, sparse_as_dense, average_aggregated_gradients),
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )


__all__ = ["LocalGradientAggregationHelperEager"]
