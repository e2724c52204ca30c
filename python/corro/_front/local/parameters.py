"""What is asked of a model, and what ranks send each other of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from corro import _native
from corro._front.adapter import CPU
from corro._front.arguments import Average
from corro._front.process_sets import ProcessSet

Vector = npt.NDArray[np.float32]

# The engine's number for float32.
FLOAT32 = 7


class Parameters(Protocol):
    """The parameters of a model, numbered from 0."""

    def sizes(self) -> list[int]:
        """How many values each has."""

    def read(self, which: range) -> Vector:
        """A copy of these, one behind the other."""

    def write(self, which: range, values: Vector) -> None:
        """Puts new values into these."""


def everything(parameters: Parameters) -> range:
    return range(len(parameters.sizes()))


def start_average(vector: Vector, process_set: ProcessSet, name: str, compression: str | None = None) -> int:
    """Begins to average a vector in place. `_native.wait` on what it gives."""
    return _native.submit(
        "allreduce", _view(vector), _view(vector), process_set.process_set_id, name, vector, vector, None, Average,
        compression=compression,
    )  # fmt: skip


def average(vector: Vector, process_set: ProcessSet, name: str) -> None:
    """Averages a vector in place."""
    _native.run("allreduce", _view(vector), _view(vector), process_set.process_set_id, name, Average)


def send(vector: Vector, to: int, splits: Sequence[int], process_set: ProcessSet, name: str) -> Vector:
    """Sends a vector to one rank of the set; all that others send here comes back, one behind the other.

    `splits` are the values that go to each rank: none but to `to`.
    """
    assert sum(splits) == splits[to] == vector.size
    handle = _native.submit(
        "alltoall", _view(vector), None, process_set.process_set_id, name, vector, vector, _received, splits=splits
    )
    received: Vector = _native.wait(handle)
    return received


def _received(_sent: Any, output: Any) -> Vector:
    return np.asarray(output).view(np.float32) if output.nbytes else np.empty(0, np.float32)


def _view(vector: Vector) -> Any:
    assert vector.dtype == np.float32
    assert vector.flags.c_contiguous
    return (vector.ctypes.data, vector.shape, FLOAT32, CPU)
