"""The optimizers of Keras 2, as `tf_keras` keeps them: its newer ones and the ones it calls legacy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from corro._keras.gradients import Reducer, same_variable

Pairs = Iterable[tuple[Any, Any]]


class DistributedKeras2:
    """What is put before the class of a Keras 2 optimizer.

    Gradients are reduced once, by the first of these methods that meets them. Keras calls some of them itself: `minimize`
    computes gradients and applies them. An optimizer that scales losses aggregates first, so that all ranks agree whether
    there is anything to apply, and says so when it applies.
    """

    _reducer: Reducer
    # Adds up the gradients of several steps, if they are to be. By Horovod's name, which programs know.
    _agg_helper: Any
    # The variables whose gradients have been computed, which reduces them, and not been applied yet.
    _reduced: frozenset[int]
    # Whether Keras is at work for one of the methods below.
    _inside: bool

    def _distribute(self, reducer: Reducer, passes: int, average_passes: bool) -> None:
        helper = _sums_of(reducer, passes, average_passes) if passes > 1 else None
        # Not by `setattr`, which would have Keras track these as parts of the model.
        self.__dict__.update(_reducer=reducer, _agg_helper=helper, _reduced=frozenset(), _inside=False)

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced: each rank trains its own."""
        self._reducer.add_local_variable(var)

    def apply_gradients(self, grads_and_vars: Pairs, *args: Any, **kwargs: Any) -> Any:
        apply_plainly = super().apply_gradients  # type: ignore[misc]
        pairs, reduced = list(grads_and_vars), self._forget_reduced()
        if not self._inside and not reduced(pairs) and _aggregation_is_wanted(apply_plainly, pairs, *args, **kwargs):
            pairs = self._reduce(pairs)

        def apply() -> Any:
            with self._working():
                return apply_plainly(pairs, *args, **kwargs)

        return self._agg_helper.apply_gradients(apply, self) if self._agg_helper and not self._inside else apply()

    def aggregate_gradients(self, grads_and_vars: Pairs) -> list[tuple[Any, Any]]:
        """The gradients of all ranks together: give them to `apply_gradients(..., skip_gradients_aggregation=True)`."""
        return self._once_reduced(grads_and_vars)

    def _aggregate_gradients(self, grads_and_vars: Pairs) -> list[tuple[Any, Any]]:
        return self._once_reduced(grads_and_vars)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """The gradients of a loss, of all ranks together. `apply_gradients` then takes them as they are."""
        return self._compute_gradients(loss, var_list, tape=tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        keras: Any = super()
        # The legacy optimizers and the newer ones have this under different names.
        if hasattr(keras, "_compute_gradients"):
            pairs = keras._compute_gradients(loss, var_list, grad_loss=grad_loss, tape=tape)
        elif grad_loss is None:
            pairs = keras.compute_gradients(loss, var_list, tape=tape)
        else:
            raise ValueError(f"{type(self).__name__} is an optimizer of the newer kind, which takes no grad_loss.")
        return pairs if self._inside else self._newly_reduced(pairs)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """The gradients of a loss in a graph of TensorFlow 1's style, of all ranks together."""
        gradients = super().get_gradients(loss, params)  # type: ignore[misc]
        return [gradient for gradient, _ in self._newly_reduced(list(zip(gradients, params, strict=True)))]

    def _once_reduced(self, grads_and_vars: Pairs) -> list[tuple[Any, Any]]:
        pairs, reduced = list(grads_and_vars), self._forget_reduced()
        return pairs if self._inside or reduced(pairs) else self._reduce(pairs)

    def _forget_reduced(self) -> Callable[[list[tuple[Any, Any]]], bool]:
        """Tells of pairs whether they have been reduced; asked once, since the next ones have not been."""
        known = self._reduced
        self.__dict__["_reduced"] = frozenset()
        return lambda pairs: bool(pairs) and {same_variable(variable) for _, variable in pairs} <= known

    def _newly_reduced(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Remembers that these have been reduced: between here and `apply_gradients` a program may clip them."""
        reduced = self._reduce(pairs)
        self.__dict__["_reduced"] = frozenset(same_variable(variable) for _, variable in pairs)
        return reduced

    def _reduce(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        reduce = self._agg_helper.compute_gradients if self._agg_helper else self._reducer
        return list(zip(reduce(gradients, variables), variables, strict=True))

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Keras's methods call each other; what they hand on has been reduced."""
        before = self._inside
        self.__dict__["_inside"] = True
        try:
            yield
        finally:
            self.__dict__["_inside"] = before


def _aggregation_is_wanted(apply_gradients: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the caller has not said that the gradients are those of all ranks already."""
    # The legacy optimizers know one word for it, the newer ones both.
    given = inspect.signature(apply_gradients).bind(*args, **kwargs).arguments
    given = {**given, **given.get("kwargs", {})}
    return bool(given.get("experimental_aggregate_gradients", True)) and not given.get("skip_gradients_aggregation")


def has_state(optimizer: Any) -> bool:
    # The optimizers of the old kind don't say that they are built.
    return bool(getattr(optimizer, "_built", False) or getattr(optimizer, "_weights", None))


def _sums_of(reducer: Reducer, passes: int, average_passes: bool) -> Any:
    # Keras 2 has TensorFlow; those who come here for another Keras may not.
    from corro.tensorflow.gradient_aggregation import LocalGradientAggregationHelper

    return LocalGradientAggregationHelper(passes, reducer, reducer.sparse_as_dense, average_passes)
