"""Training that survives a change of the ranks: `hvd.elastic.run`, `KerasState` and its callbacks."""

from __future__ import annotations

from collections.abc import Callable

from corro._front.elastic import P, R
from corro._keras import callbacks as what
from corro._keras import elastic as states
from corro.keras._which import keras

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


def run(func: Callable[P, R]) -> Callable[P, R]:
    """Decorates `func(state, ...)`: it is started again, from the last commit, when ranks are lost or added."""
    return states.run(keras, func)


class KerasState(states.State):
    """Model, optimizer (the model's, unless given) and plain values of a training."""

    _keras = keras


class CommitStateCallback(what.CommitState, keras.callbacks.Callback):
    """Commits the state every `batches_per_commit` batches, and at the end of each epoch."""


class UpdateBatchStateCallback(what.UpdateBatchState, keras.callbacks.Callback):
    """Keeps `state.batch`, and shortens the epoch in which training is resumed."""


class UpdateEpochStateCallback(what.UpdateEpochState, keras.callbacks.Callback):
    """Keeps `state.epoch`."""
