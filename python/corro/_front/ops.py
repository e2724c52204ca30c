"""The operations on tensors that have addresses, written once: a front gives its `Adapter`, and adds its signatures.

One collective on one tensor, or on a group, outside of any graph: no gradients, no compression. The last arguments of every
operation are the engine's: reduce op, prescale, postscale, root. What is in flight owns the memory of its tensors: a program
may do what it likes with them, and gets wrong numbers at worst.

Each operation is made by a function that takes the adapter apart first: an operation takes microseconds, and looking up
methods is a good part of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from corro._errors import HorovodInternalError
from corro._front.adapter import Adapter
from corro._front.process_sets import ProcessSet
from corro._native import run, submit, submit_group, wait

Op = Callable[..., Any]
# What owns the memory of a tensor: the adapter's `hold`, or for tensors that nobody else has in hand `storage`.
Keep = Callable[[Any], Any]


class Ops:
    """What a framework's tensors can be asked for. Those that end in `_async` give a handle."""

    def __init__(self, adapter: Adapter) -> None:
        # The result replaces the tensor's elements.
        self.in_place = _in_place(adapter)
        self.in_place_async = _in_place_async(adapter)
        self.group_in_place_async = _group_in_place_async(adapter)
        # The result is a new tensor of the same shape.
        self.into_new = _into_new(adapter)
        self.into_new_async = _into_new_async(adapter)
        self.group_into_new_async = _group_into_new_async(adapter)
        # The result is a new tensor with as many rows as the ranks make it.
        self.resized = _resized(adapter)
        self.resized_async = _resized_async(adapter)
        self.group_resized_async = _group_resized_async(adapter)
        # `splits[r]` consecutive rows go to rank r; empty splits mean equal parts.
        self.alltoall = _alltoall(adapter)
        self.alltoall_async = _alltoall_async(adapter)

    def group_in_place(self, *arguments: Any) -> list[Any]:
        return list(wait(self.group_in_place_async(*arguments)))

    def group_into_new(self, *arguments: Any) -> list[Any]:
        return list(wait(self.group_into_new_async(*arguments)))

    def group_resized(self, *arguments: Any) -> list[Any]:
        return list(wait(self.group_resized_async(*arguments)))


def _in_place(adapter: Adapter) -> Op:
    place, reachable, view = adapter.place, adapter.reachable, adapter.view
    rounded, put_back = adapter.rounded, adapter.put_back

    def in_place(kind: str, tensor: Any, process_set: ProcessSet, name: str | None, *numbers: Any) -> Any:
        here = place(tensor)
        if here is not None:
            run(kind, here, here, process_set.process_set_id, name, *rounded(numbers, tensor))
            return tensor
        home = reachable(tensor)
        there = view(home, tensor)
        run(kind, there, there, process_set.process_set_id, name, *rounded(numbers, tensor))
        return put_back((tensor, home))

    return in_place


def _in_place_async(adapter: Adapter) -> Op:
    place, reachable, view = adapter.place, adapter.reachable, adapter.view
    rounded, put_back, hold = adapter.rounded, adapter.put_back, adapter.hold

    def in_place_async(
        kind: str, tensor: Any, process_set: ProcessSet, name: str | None, *numbers: Any, keep: Keep = hold
    ) -> int:
        here = place(tensor)
        if here is not None:
            numbers = rounded(numbers, tensor)
            return submit(kind, here, here, process_set.process_set_id, name, keep(tensor), tensor, None, *numbers)
        home = reachable(tensor)
        there = view(home, tensor)
        numbers = rounded(numbers, tensor)
        return submit(kind, there, there, process_set.process_set_id, name, home, (tensor, home), put_back, *numbers)

    return in_place_async


def _into_new(adapter: Adapter) -> Op:
    place, reachable, view = adapter.place, adapter.reachable, adapter.view
    rounded, empty_like, to_device = adapter.rounded, adapter.empty_like, adapter.to_device

    def into_new(kind: str, tensor: Any, process_set: ProcessSet, name: str | None, *numbers: Any) -> Any:
        here = place(tensor)
        if here is not None:
            result = empty_like(tensor)
            run(kind, here, place(result), process_set.process_set_id, name, *rounded(numbers, tensor))
            return result
        home = reachable(tensor)
        result = empty_like(home)
        places = (view(home, tensor), view(result, tensor))
        run(kind, *places, process_set.process_set_id, name, *rounded(numbers, tensor))
        return result if home is tensor else to_device((tensor, result))

    return into_new


def _into_new_async(adapter: Adapter) -> Op:
    place, reachable, view, kept = adapter.place, adapter.reachable, adapter.view, _kept(adapter)
    rounded, empty_like, to_device = adapter.rounded, adapter.empty_like, adapter.to_device
    is_on_host, is_on_gpu, hold = adapter.is_on_host, adapter.is_on_gpu, adapter.hold

    def into_new_async(kind: str, tensor: Any, process_set: ProcessSet, name: str | None, *numbers: Any) -> int:
        here = place(tensor)
        if here is not None and is_on_gpu(tensor):
            result = empty_like(tensor)
            set_id, numbers = process_set.process_set_id, rounded(numbers, tensor)
            return submit(kind, here, place(result), set_id, name, [hold(tensor), result], result, None, *numbers)
        home = reachable(tensor)
        result = empty_like(home)
        places = (view(home, tensor), view(result, tensor))
        numbers = rounded(numbers, tensor)
        if is_on_host(tensor):
            return submit(kind, *places, process_set.process_set_id, name, kept(home, tensor), result, None, *numbers)
        return submit(kind, *places, process_set.process_set_id, name, home, (tensor, result), to_device, *numbers)

    return into_new_async


def _resized(adapter: Adapter) -> Op:
    reachable, view, rounded, from_output = adapter.reachable, adapter.view, adapter.rounded, adapter.from_output

    def resized(kind: str, tensor: Any, process_set: ProcessSet, name: str | None, *numbers: Any) -> Any:
        home = reachable(tensor)  # a name, so that a copy outlives the run
        output = run(kind, view(home, tensor), None, process_set.process_set_id, name, *rounded(numbers, tensor))
        return from_output(tensor, output)

    return resized


def _resized_async(adapter: Adapter) -> Op:
    reachable, view, rounded, from_output = adapter.reachable, adapter.view, adapter.rounded, adapter.from_output
    kept = _kept(adapter)

    def resized_async(kind: str, tensor: Any, process_set: ProcessSet, name: str | None, *numbers: Any) -> int:
        home = reachable(tensor)
        set_id, numbers = process_set.process_set_id, rounded(numbers, tensor)
        return submit(kind, view(home, tensor), None, set_id, name, kept(home, tensor), tensor, from_output, *numbers)

    return resized_async


def _alltoall(adapter: Adapter) -> Op:
    reachable, view, with_splits = adapter.reachable, adapter.view, adapter.with_splits

    def alltoall(tensor: Any, splits: list[int], device: Any, process_set: ProcessSet, name: str | None) -> Any:
        home = reachable(tensor)  # a name, so that a copy outlives the run
        sent = _sent(view(home, tensor), splits)
        output = run("alltoall", sent, None, process_set.process_set_id, name, splits=splits)
        return with_splits((tensor, device), output)

    return alltoall


def _alltoall_async(adapter: Adapter) -> Op:
    reachable, view, with_splits, hold = adapter.reachable, adapter.view, adapter.with_splits, adapter.hold

    def alltoall_async(tensor: Any, splits: list[int], device: Any, process_set: ProcessSet, name: str | None) -> int:
        home = reachable(tensor)
        set_id, sent = process_set.process_set_id, _sent(view(home, tensor), splits)
        return submit("alltoall", sent, None, set_id, name, hold(home), (tensor, device), with_splits, splits=splits)

    return alltoall_async


def _sent(whole: Any, splits: list[int]) -> Any:
    """The first rows of a tensor: those that are sent."""
    return (whole[0], (sum(splits), *whole[1][1:]), *whole[2:]) if splits else whole


def _group_in_place_async(adapter: Adapter) -> Op:
    place, rounded_each, put_back, hold = adapter.place, adapter.rounded_each, adapter.put_back, adapter.hold

    def group_in_place_async(
        kind: str, tensors: Sequence[Any], process_set: ProcessSet, name: str | None, *numbers: Any, keep: Keep = hold
    ) -> int:
        set_id = process_set.process_set_id
        here = [found for tensor in tensors if (found := place(tensor)) is not None]
        if len(here) == len(tensors):
            kept = [keep(tensor) for tensor in tensors]
            numbers = rounded_each(numbers, tensors)
            return submit_group(kind, here, here, set_id, name, kept, list(tensors), None, *numbers)
        homes = _all_reachable(adapter, tensors)
        places = _views(adapter, homes, tensors)
        results = list(zip(tensors, homes, strict=True))
        numbers = rounded_each(numbers, tensors)
        return submit_group(kind, places, places, set_id, name, homes, results, put_back, *numbers)

    return group_in_place_async


def _group_into_new_async(adapter: Adapter) -> Op:
    place, rounded_each = adapter.place, adapter.rounded_each
    to_device, empty_like = adapter.to_device, adapter.empty_like
    is_on_host, is_on_gpu, hold, kept = adapter.is_on_host, adapter.is_on_gpu, adapter.hold, _kept(adapter)

    def group_into_new_async(
        kind: str, tensors: Sequence[Any], process_set: ProcessSet, name: str | None, *numbers: Any
    ) -> int:
        here = [found for tensor in tensors if is_on_gpu(tensor) and (found := place(tensor)) is not None]
        if here and len(here) == len(tensors):
            results = [empty_like(tensor) for tensor in tensors]
            outputs = _views(adapter, results, results)
            set_id, numbers = process_set.process_set_id, rounded_each(numbers, tensors)
            owners = [*map(hold, tensors), *results]
            return submit_group(kind, here, outputs, set_id, name, owners, results, None, *numbers)
        homes = _all_reachable(adapter, tensors)
        results = [empty_like(home) for home in homes]
        places = _views(adapter, homes, tensors)
        outputs = _views(adapter, results, tensors)
        set_id, numbers = process_set.process_set_id, rounded_each(numbers, tensors)
        if is_on_host(tensors[0]):
            held = [kept(home, tensor) for home, tensor in zip(homes, tensors, strict=True)]
            return submit_group(kind, places, outputs, set_id, name, held, results, None, *numbers)
        pairs = list(zip(tensors, results, strict=True))
        return submit_group(kind, places, outputs, set_id, name, homes, pairs, to_device, *numbers)

    return group_into_new_async


def _group_resized_async(adapter: Adapter) -> Op:
    rounded_each, from_output, kept = adapter.rounded_each, adapter.from_output, _kept(adapter)

    def group_resized_async(
        kind: str, tensors: Sequence[Any], process_set: ProcessSet, name: str | None, *numbers: Any
    ) -> int:
        homes = _all_reachable(adapter, tensors)
        places = _views(adapter, homes, tensors)
        held = [kept(home, tensor) for home, tensor in zip(homes, tensors, strict=True)]
        numbers = rounded_each(numbers, tensors)
        set_id = process_set.process_set_id
        return submit_group(kind, places, None, set_id, name, held, list(tensors), from_output, *numbers)

    return group_resized_async


def _kept(adapter: Adapter) -> Op:
    """What owns the memory of a home: a copy is nobody else's."""
    hold = adapter.hold

    def kept(home: Any, tensor: Any) -> Any:
        return hold(home) if home is tensor else home

    return kept


def _views(adapter: Adapter, homes: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    view = adapter.view
    return [view(home, tensor) for home, tensor in zip(homes, tensors, strict=True)]


def _all_reachable(adapter: Adapter, tensors: Sequence[Any]) -> list[Any]:
    device_of, reachable = adapter.device, adapter.reachable
    device = device_of(tensors[0])
    for tensor in tensors:
        if device_of(tensor) != device:
            raise HorovodInternalError(
                f"the tensors of a group must be on one device, but one is on {device} and another on "
                f"{device_of(tensor)}."
            )
    return [reachable(tensor) for tensor in tensors]
