"""Elastic training with Keras: the state of a model and its optimizer, and how a lost rank shows on each backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from corro._errors import HorovodInternalError
from corro._front import basics
from corro._front.elastic import ObjectState, P, R, restart, run_fn
from corro._front.objects import broadcast_object
from corro._keras.backends import backend_of
from corro._keras.callbacks import bring_variables, variables_of
from corro._keras.values import as_array, broadcast_variables


def run(keras: Any, func: Callable[P, R]) -> Callable[P, R]:
    """Decorates `func(state, ...)`: it is started again, from the last commit, when ranks are lost or added."""
    backend = backend_of(keras)

    @functools.wraps(func)
    def translated(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            reason = backend.internal_error(error)
            if reason is None or isinstance(error, HorovodInternalError):
                raise
            raise HorovodInternalError(reason) from error

    return run_fn(translated, restart)


class State(ObjectState):
    """Model, optimizer (the model's, unless given) and plain values of a training, as attributes.

    `commit()` saves them in memory and looks whether hosts have changed; `restore()` goes back to the last commit;
    `sync()` takes over what rank 0 has. Raises `ValueError` for a model that is not built.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> state = hvd.elastic.KerasState(model, keras.optimizers.SGD(0.1), epoch=0)
        >>> state.epoch = 1
        >>> state.restore()
        >>> state.epoch
        0
    """

    _keras: Any

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError(
                "the model must be built before a KerasState is made of it: give its first layer an input shape, or call "
                "model.build(input_shape)."
            )
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        build = getattr(self.optimizer, "build", None)
        if build is not None and not getattr(self.optimizer, "built", True):
            # All ranks must have the same variables to send, also the ones that have not trained yet.
            build(model.trainable_variables)
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        if getattr(self.model, "_jax_state", None) is not None:
            # What a step that failed has left behind must not be fetched over what is restored now.
            self.model._jax_state = None
        for variable, array in zip(self._variables(), self._saved_variables, strict=True):
            variable.assign(array)
        super().restore()

    def sync(self) -> None:
        bring_variables(self.model)
        broadcast_variables(self._keras, self._variables(), 0, "KerasState")
        self._save_variables()
        super().sync()

    def reset(self) -> None:
        # A compiled step knows the number of ranks it was made for.
        self.model.train_function = None

    def _variables(self) -> list[Any]:
        return variables_of(self.model, self.optimizer)

    def _save_variables(self) -> None:
        bring_variables(self.model)
        self._saved_variables = [np.array(as_array(self._keras, variable)) for variable in self._variables()]
