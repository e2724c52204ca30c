"""The optimizers of Keras 2, as `tf_keras` keeps them: its newer ones and the ones it calls legacy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corro._keras.gradients import Reducer


class DistributedKeras2:
    """What is put before the class of a Keras 2 optimizer: gradients are reduced where they are applied."""

    _reducer: Reducer
    # Adds up the gradients of several steps, if they are to be.
    _sums: Any

    def _distribute(self, reducer: Reducer, passes: int, average_passes: bool) -> None:
        object.__setattr__(self, "_reducer", reducer)
        object.__setattr__(self, "_sums", _sums_of(reducer, passes, average_passes) if passes > 1 else None)

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced: each rank trains its own."""
        self._reducer.add_local_variable(var)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        reduce = self._sums.compute_gradients if self._sums else self._reducer
        reduced = list(zip(reduce(gradients, variables), variables, strict=True))

        def apply() -> Any:
            return super(DistributedKeras2, self).apply_gradients(reduced, *args, **kwargs)  # type: ignore[misc]

        return self._sums.apply_gradients(apply, self) if self._sums else apply()


def has_state(optimizer: Any) -> bool:
    # The optimizers of the old kind don't say that they are built.
    return bool(getattr(optimizer, "_built", False) or getattr(optimizer, "_weights", None))


def _sums_of(reducer: Reducer, passes: int, average_passes: bool) -> Any:
    # Keras 2 has TensorFlow; those who come here for another Keras may not.
    from corro.tensorflow.gradient_aggregation import LocalGradientAggregationHelper

    return LocalGradientAggregationHelper(passes, reducer, reducer.sparse_as_dense, average_passes)
