"""Saving and loading of estimators and models, as stages of a `Pipeline` are saved: a folder, written by Spark.

Models, losses and functions are Python's own objects, so they are pickled. Load only what you trust, as with any pickle.
"""

from __future__ import annotations

import base64
from typing import Any

import cloudpickle
import pyspark
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

__all__ = ["Saved"]


class Saved(MLReadable, MLWritable):
    """Whatever has parameters, which are all it has to keep."""

    def write(self) -> MLWriter:
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader:
        return _Reader(cls)

    def __reduce__(self) -> Any:
        return _made, (type(self), self.uid, self._packed(_values(self)))  # type: ignore[attr-defined]

    def __copy__(self) -> Any:
        return _with_values(type(self), self.uid, _values(self))  # type: ignore[attr-defined]

    def _packed(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values that can be pickled; `_unpacked` makes them what they were."""
        return values

    @classmethod
    def _unpacked(cls, values: dict[str, Any]) -> dict[str, Any]:
        return values


def _values(instance: Any) -> dict[str, Any]:
    return {param.name: value for param, value in instance._paramMap.items()}


def _with_values(cls: type, uid: str, values: dict[str, Any]) -> Any:
    instance: Any = cls()
    instance._resetUid(uid)
    instance._set(**values)
    return instance


def _made(cls: Any, uid: str, values: dict[str, Any]) -> Any:
    return _with_values(cls, uid, cls._unpacked(values))


class _Writer(MLWriter):
    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:  # noqa: N802 - Spark's way to name it
        content = base64.b64encode(cloudpickle.dumps(self._instance._packed(_values(self._instance)))).decode()
        extra = {"corro": content}
        DefaultParamsWriter.saveMetadata(self._instance, path, _access(self), extraMetadata=extra, paramMap={})


class _Reader(MLReader):
    def __init__(self, cls: type) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, _access(self))
        values = cloudpickle.loads(base64.b64decode(metadata["corro"]))
        return _made(self._cls, metadata["uid"], values)


def _access(by: MLReader | MLWriter) -> Any:
    """By what Spark reads and writes. Clients of Spark Connect have no more than a session; Spark 3.5 wants its context."""
    return by.sc if pyspark.__version__.startswith("3.") else by.sparkSession
