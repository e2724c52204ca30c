"""The operations on tensors that have addresses, written once: a front gives its `Adapter`, and adds its signatures.

Each waits for its result. The last arguments are the engine's: reduce op, prescale, postscale, root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corro import _native
from corro._front.adapter import Adapter
from corro._front.process_sets import ProcessSet


class Ops:
    """What a framework's tensors can be asked for."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def in_place(self, kind: str, tensor: Any, process_set: ProcessSet, name: str | None, *numbers: Any) -> Any:
        """The result replaces the tensor's elements."""
        home = self._adapter.home(tensor)
        there = self._adapter.view(home, tensor)
        _native.run(kind, there, there, process_set.process_set_id, name, *numbers)
        return self._adapter.put_back(tensor, home)

    def into_new(self, kind: str, tensor: Any, process_set: ProcessSet, name: str | None, *numbers: Any) -> Any:
        """The result is a new tensor of the same shape."""
        home = self._adapter.home(tensor)
        result = self._adapter.empty_like(home)
        places = (self._adapter.view(home, tensor), self._adapter.view(result, tensor))
        _native.run(kind, *places, process_set.process_set_id, name, *numbers)
        return self._adapter.beside(tensor, result)

    def resized(self, kind: str, tensor: Any, process_set: ProcessSet, name: str | None, *numbers: Any) -> Any:
        """The result is a new tensor with as many rows as the ranks make it."""
        home = self._adapter.home(tensor)
        output = _native.run(kind, self._adapter.view(home, tensor), None, process_set.process_set_id, name, *numbers)
        return self._adapter.from_output(tensor, _there(output))

    def alltoall(
        self, tensor: Any, splits: list[int], process_set: ProcessSet, name: str | None
    ) -> tuple[Any, list[int]]:
        """`splits[r]` consecutive rows go to rank r; empty splits mean equal parts. Also gives how many came from whom."""
        home = self._adapter.home(tensor)
        address, shape, dtype, device = self._adapter.view(home, tensor)
        sent = (sum(splits), *shape[1:]) if splits else shape
        place = (address, sent, dtype, device)
        output = _there(_native.run("alltoall", place, None, process_set.process_set_id, name, splits=splits))
        return self._adapter.from_output(tensor, output), output.received_splits

    def group_in_place(
        self, kind: str, tensors: Sequence[Any], process_set: ProcessSet, name: str | None, *numbers: Any
    ) -> list[Any]:
        homes = [self._adapter.home(tensor) for tensor in tensors]
        places = self._views(homes, tensors)
        set_id = process_set.process_set_id
        _native.wait(_native.submit_group(kind, places, places, set_id, name, homes, list(tensors), None, *numbers))
        return [self._adapter.put_back(tensor, home) for tensor, home in zip(tensors, homes, strict=True)]

    def group_into_new(
        self, kind: str, tensors: Sequence[Any], process_set: ProcessSet, name: str | None, *numbers: Any
    ) -> list[Any]:
        homes = [self._adapter.home(tensor) for tensor in tensors]
        results = [self._adapter.empty_like(home) for home in homes]
        places, outputs = self._views(homes, tensors), self._views(results, tensors)
        set_id, kept = process_set.process_set_id, (homes, results)
        _native.wait(_native.submit_group(kind, places, outputs, set_id, name, kept, list(tensors), None, *numbers))
        return [self._adapter.beside(tensor, result) for tensor, result in zip(tensors, results, strict=True)]

    def group_resized(
        self, kind: str, tensors: Sequence[Any], process_set: ProcessSet, name: str | None, *numbers: Any
    ) -> list[Any]:
        homes = [self._adapter.home(tensor) for tensor in tensors]
        places, set_id = self._views(homes, tensors), process_set.process_set_id
        make = self._adapter.from_output
        handle = _native.submit_group(kind, places, None, set_id, name, homes, list(tensors), make, *numbers)
        return list(_native.wait(handle) or ())

    def _views(self, homes: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        return [self._adapter.view(home, tensor) for home, tensor in zip(homes, tensors, strict=True)]


def _there(output: Any) -> Any:
    assert output is not None, "this kind of operation has a result of its own"
    return output
