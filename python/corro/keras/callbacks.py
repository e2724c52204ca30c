"""The callbacks of `corro.keras`."""

from __future__ import annotations

from typing import Any

from corro._front.local.outer import Nesterov
from corro._keras import callbacks as what
from corro._keras import local
from corro.keras._which import keras

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "DiLoCoCallback",
    "GossipCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LocalSGDCallback",
    "LogValuesCallback",
    "MetricAverageCallback",
    "Nesterov",
]


class BroadcastGlobalVariablesCallback(what.Broadcast, keras.callbacks.Callback):
    _keras = keras


class MetricAverageCallback(what.MetricAverage, keras.callbacks.Callback):
    _keras = keras


class LogValuesCallback(what.LogValues, keras.callbacks.Callback):
    pass


class LearningRateScheduleCallback(what.LearningRateSchedule, keras.callbacks.Callback):
    _keras = keras


class LearningRateWarmupCallback(what.LearningRateWarmup, keras.callbacks.Callback):
    _keras = keras


class LocalSGDCallback(local.LocalSGD, keras.callbacks.Callback):
    _keras = keras


class DiLoCoCallback(local.DiLoCo, keras.callbacks.Callback):
    _keras = keras


class GossipCallback(local.Gossip, keras.callbacks.Callback):
    _keras = keras


class BestModelCheckpoint(what.BestModel, keras.callbacks.ModelCheckpoint):
    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        **kwargs: Any,
    ) -> None:
        super().__init__(monitor=monitor, verbose=verbose, mode=mode, save_freq=save_freq, **kwargs)
