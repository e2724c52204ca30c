"""Training that survives a change of the ranks: `hvd.elastic.run`, `KerasState` and its callbacks."""

from __future__ import annotations

from collections.abc import Callable

from corro._front.elastic import P, R
from corro._keras import callbacks as what
from corro._keras import elastic as states
from corro.tensorflow.keras._which import keras

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


def run(func: Callable[P, R]) -> Callable[P, R]:
    """Decorates `func(state, ...)`: it is started again, from the last commit, when ranks are lost or added.

    The state goes first. Raises what `func` raises, but for lost ranks and changed hosts.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     while state.epoch < 3:
        ...         state.epoch += 1
        ...         state.commit()
        ...     return state.epoch
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> train(hvd.elastic.KerasState(model, epoch=0))
        3
    """
    return states.run(keras, func)


class KerasState(states.State):
    _keras = keras


class CommitStateCallback(what.CommitState, keras.callbacks.Callback):
    pass


class UpdateBatchStateCallback(what.UpdateBatchState, keras.callbacks.Callback):
    pass


class UpdateEpochStateCallback(what.UpdateEpochState, keras.callbacks.Callback):
    pass
