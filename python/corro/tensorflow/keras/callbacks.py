"""The callbacks of `corro.tensorflow.keras`."""

from __future__ import annotations

from corro._keras import callbacks as what
from corro.tensorflow.keras._which import keras

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LogValuesCallback",
    "MetricAverageCallback",
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


class BestModelCheckpoint(what.BestModel, keras.callbacks.ModelCheckpoint):
    pass
