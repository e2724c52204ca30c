"""Collectives on values, and the broadcast of variables. They run on the host, outside of any compiled step, the same way
on every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import corro.numpy as hvd
from corro._front.arguments import Average
from corro._front.compression import NoneCompressor
from corro._front.engine_compression import is_for_engine
from corro._front.process_sets import ProcessSet, global_process_set


def as_array(keras: Any, value: Any) -> Any:
    """The elements of a number, array, tensor or variable."""
    if hasattr(value, "numpy") and not hasattr(value, "detach"):
        return np.asarray(value.numpy())
    convert: Callable[[Any], Any] | None = getattr(getattr(keras, "ops", None), "convert_to_numpy", None)
    return np.asarray(convert(value) if convert else value)


class Values:
    """The functions of a front that take values. Results are tensors of the backend."""

    def __init__(self, keras: Any, tensor: Callable[[Any], Any]) -> None:
        self._keras = keras
        self._tensor = tensor

    def allreduce(
        self,
        value: Any,
        name: str | None,
        average: bool | None,
        prescale_factor: float,
        postscale_factor: float,
        op: int | None,
        compression: Any,
    ) -> Any:
        by_engine, cast = (compression, NoneCompressor) if is_for_engine(compression) else (None, compression)
        packed, context = cast.compress(self._tensor(value))
        reduced = hvd.allreduce(
            as_array(self._keras, packed),
            average=average,
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=by_engine,
        )
        return cast.decompress(self._tensor(reduced), context)

    def allgather(self, value: Any, name: str | None) -> Any:
        return self._tensor(hvd.allgather(self._array(value), name))

    def broadcast(self, value: Any, root_rank: int, name: str | None) -> Any:
        return self._tensor(hvd.broadcast_(np.array(self._array(value)), root_rank, name))

    def reducescatter(self, value: Any, name: str | None, op: int) -> Any:
        return self._tensor(hvd.reducescatter(self._array(value), name, op))

    def _array(self, value: Any) -> Any:
        """With the dtype that the backend gives to numbers and lists, which is not NumPy's."""
        return as_array(self._keras, self._tensor(value))


def broadcast_variables(
    keras: Any,
    variables: Iterable[Any],
    root_rank: int,
    name: str = "variables",
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every variable the value it has on the (global) rank `root_rank`."""
    variables = list(variables)
    arrays = [np.array(as_array(keras, variable)) for variable in variables]
    handles = [
        hvd.broadcast_async_(array, root_rank, f"{name}.{number}", process_set) for number, array in enumerate(arrays)
    ]
    # All are waited for, also after one has failed: nothing may stay in flight.
    failures: list[Exception] = []
    for handle in handles:
        try:
            hvd.synchronize(handle)
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    if hvd.rank() != root_rank:
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)


def average_metrics(keras: Any, logs: dict[str, Any]) -> None:
    """Replaces the numbers and arrays in `logs` by their averages over the ranks."""
    handles = {}
    for name in sorted(logs):
        array = _as_numbers(keras, logs[name])
        if array is not None:
            handles[name] = hvd.allreduce_async(array, name=f"metric.{name}", op=Average)
    for name, handle in handles.items():
        average = hvd.synchronize(handle)
        logs[name] = average if average.ndim else float(average)


def _as_numbers(keras: Any, value: Any) -> Any:
    if value is None or isinstance(value, (str, bytes, dict)):
        return None
    try:
        return np.asarray(as_array(keras, value), np.float64)
    except (TypeError, ValueError):
        return None  # nothing that has an average
