"""The optimizers of Keras 2, as `tf_keras` keeps them: its newer ones and the ones it calls legacy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corro._keras.gradients import Reducer


class DistributedKeras2:
    """What is put before the class of a Keras 2 optimizer: gradients are reduced where they are applied."""

    _reducer: Reducer

    def _distribute(self, reducer: Reducer, passes: int, average_passes: bool) -> None:
        if passes > 1:
            raise ValueError(
                "backward_passes_per_step > 1 needs Keras 3. With tf_keras, use the gradient tape of corro.tensorflow."
            )
        object.__setattr__(self, "_reducer", reducer)

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced: each rank trains its own."""
        self._reducer.add_local_variable(var)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        reduced = self._reducer([gradient for gradient, _ in pairs], variables)
        return super().apply_gradients(list(zip(reduced, variables, strict=True)), *args, **kwargs)  # type: ignore[misc]
