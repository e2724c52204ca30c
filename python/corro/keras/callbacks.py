"""The callbacks of `corro.keras`."""

from __future__ import annotations

from typing import Any

from corro._keras import callbacks as what
from corro.keras._which import keras

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(what.Broadcast, keras.callbacks.Callback):
    """All ranks take the variables of `root_rank`, after the first batch of a training."""

    _keras = keras


class MetricAverageCallback(what.MetricAverage, keras.callbacks.Callback):
    """Averages metrics over the ranks at the end of each epoch. Put it before callbacks that read metrics."""

    _keras = keras


class LearningRateScheduleCallback(what.LearningRateSchedule, keras.callbacks.Callback):
    """`initial_lr * multiplier(epoch)`, in each epoch (`staircase`) or in each batch."""

    _keras = keras


class LearningRateWarmupCallback(what.LearningRateWarmup, keras.callbacks.Callback):
    """From `initial_lr / size` to `initial_lr` over `warmup_epochs`."""

    _keras = keras


class BestModelCheckpoint(what.BestModel, keras.callbacks.ModelCheckpoint):
    """Saves the best model only; its `filepath` is set later."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        **kwargs: Any,
    ) -> None:
        super().__init__(monitor=monitor, verbose=verbose, mode=mode, save_freq=save_freq, **kwargs)
