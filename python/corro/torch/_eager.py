"""One collective on one tensor, or on a group, outside of any graph: no autograd, no compression.

The last arguments of every function are the engine's: reduce op, prescale, postscale, root. The names, the checks and
the gradients are `mpi_ops`'s. What is in flight owns the memory of its tensors: a program may do what it likes with them,
and gets wrong numbers at worst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from corro._errors import HorovodInternalError
from corro._front.adapter import View
from corro._front.process_sets import ProcessSet
from corro._native import run, submit, submit_group
from corro.torch._tensors import (
    from_output,
    hold,
    reachable,
    place,
    put_back,
    rounded,
    storage,
    to_device,
    view,
    with_splits,
)

# What owns the memory of a tensor: `hold`, or for tensors that nobody else has in hand `storage`.
Keep = Callable[[torch.Tensor], Any]


def in_place(kind: str, tensor: torch.Tensor, process_set: ProcessSet, name: str | None, *numbers: Any) -> torch.Tensor:
    """The result replaces the tensor's elements."""
    here = place(tensor)
    if here is not None:
        run(kind, here, here, process_set.process_set_id, name, *rounded(numbers, tensor))
        return tensor
    home = reachable(tensor)
    there = view(home, tensor)
    run(kind, there, there, process_set.process_set_id, name, *rounded(numbers, tensor))
    return put_back((tensor, home))


def in_place_async(
    kind: str, tensor: torch.Tensor, process_set: ProcessSet, name: str | None, *numbers: Any, keep: Keep = hold
) -> int:
    here = place(tensor)
    if here is not None:
        numbers = rounded(numbers, tensor)
        return submit(kind, here, here, process_set.process_set_id, name, keep(tensor), tensor, None, *numbers)
    home = reachable(tensor)
    there = view(home, tensor)
    numbers = rounded(numbers, tensor)
    return submit(kind, there, there, process_set.process_set_id, name, home, (tensor, home), put_back, *numbers)


def into_new(kind: str, tensor: torch.Tensor, process_set: ProcessSet, name: str | None, *numbers: Any) -> torch.Tensor:
    """The result is a new tensor of the same shape."""
    here = place(tensor)
    if here is not None:
        result = torch.empty_like(tensor)
        run(kind, here, place(result), process_set.process_set_id, name, *rounded(numbers, tensor))
        return result
    home = reachable(tensor)
    result = torch.empty_like(home)
    places = (view(home, tensor), view(result, tensor))
    run(kind, *places, process_set.process_set_id, name, *rounded(numbers, tensor))
    return result if home is tensor else to_device((tensor, result))


def into_new_async(kind: str, tensor: torch.Tensor, process_set: ProcessSet, name: str | None, *numbers: Any) -> int:
    here = place(tensor)
    if here is not None and tensor.is_cuda:
        result = torch.empty_like(tensor)
        set_id, numbers = process_set.process_set_id, rounded(numbers, tensor)
        return submit(kind, here, place(result), set_id, name, (storage(tensor), result), result, None, *numbers)
    home = reachable(tensor)
    result = torch.empty_like(home)
    places = (view(home, tensor), view(result, tensor))
    numbers = rounded(numbers, tensor)
    if tensor.is_cpu:
        return submit(kind, *places, process_set.process_set_id, name, _kept(home, tensor), result, None, *numbers)
    return submit(kind, *places, process_set.process_set_id, name, home, (tensor, result), to_device, *numbers)


def resized(kind: str, tensor: torch.Tensor, process_set: ProcessSet, name: str | None, *numbers: Any) -> torch.Tensor:
    """The result is a new tensor with as many rows as the ranks make it."""
    home = reachable(tensor)  # a name, so that a copy outlives the run
    output = run(kind, view(home, tensor), None, process_set.process_set_id, name, *rounded(numbers, tensor))
    return from_output(tensor, output)


def resized_async(kind: str, tensor: torch.Tensor, process_set: ProcessSet, name: str | None, *numbers: Any) -> int:
    home = reachable(tensor)
    set_id, numbers = process_set.process_set_id, rounded(numbers, tensor)
    return submit(kind, view(home, tensor), None, set_id, name, _kept(home, tensor), tensor, from_output, *numbers)


def _kept(home: torch.Tensor, tensor: torch.Tensor) -> Any:
    """What owns the memory of `home`: a copy is nobody else's."""
    return hold(home) if home is tensor else home


def alltoall(
    tensor: torch.Tensor, splits: list[int], device: Any, process_set: ProcessSet, name: str | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`splits[r]` consecutive rows go to rank r; empty splits mean equal parts."""
    sent = reachable(tensor)[: sum(splits)] if splits else reachable(tensor)
    output = run("alltoall", view(sent, tensor), None, process_set.process_set_id, name, splits=splits)
    return with_splits((tensor, device), output)


def alltoall_async(
    tensor: torch.Tensor, splits: list[int], device: Any, process_set: ProcessSet, name: str | None
) -> int:
    sent = reachable(tensor)[: sum(splits)] if splits else reachable(tensor)
    set_id = process_set.process_set_id
    there = view(sent, tensor)
    return submit("alltoall", there, None, set_id, name, hold(sent), (tensor, device), with_splits, splits=splits)


def group_in_place_async(
    kind: str,
    tensors: Sequence[torch.Tensor],
    process_set: ProcessSet,
    name: str | None,
    *numbers: Any,
    keep: Keep = hold,
) -> int:
    set_id = process_set.process_set_id
    here = [found for tensor in tensors if (found := place(tensor)) is not None]
    if len(here) == len(tensors):
        kept = [keep(tensor) for tensor in tensors]
        numbers = rounded(numbers, tensors[0])
        return submit_group(kind, here, here, set_id, name, kept, list(tensors), None, *numbers)
    homes = _all_reachable(tensors)
    places = _views(homes, tensors)
    results = list(zip(tensors, homes, strict=True))
    numbers = rounded(numbers, tensors[0])
    return submit_group(kind, places, places, set_id, name, homes, results, put_back, *numbers)


def group_into_new_async(
    kind: str, tensors: Sequence[torch.Tensor], process_set: ProcessSet, name: str | None, *numbers: Any
) -> int:
    here = [found for tensor in tensors if tensor.is_cuda and (found := place(tensor)) is not None]
    if here and len(here) == len(tensors):
        results = [torch.empty_like(tensor) for tensor in tensors]
        outputs = [place(result) for result in results]
        set_id, numbers = process_set.process_set_id, rounded(numbers, tensors[0])
        kept = ([storage(tensor) for tensor in tensors], results)
        return submit_group(kind, here, outputs, set_id, name, kept, results, None, *numbers)
    homes = _all_reachable(tensors)
    results = [torch.empty_like(home) for home in homes]
    places = _views(homes, tensors)
    outputs = _views(results, tensors)
    set_id, numbers = process_set.process_set_id, rounded(numbers, tensors[0])
    if tensors[0].is_cpu:
        return submit_group(kind, places, outputs, set_id, name, _all_kept(homes, tensors), results, None, *numbers)
    pairs = list(zip(tensors, results, strict=True))
    return submit_group(kind, places, outputs, set_id, name, homes, pairs, to_device, *numbers)


def group_resized_async(
    kind: str, tensors: Sequence[torch.Tensor], process_set: ProcessSet, name: str | None, *numbers: Any
) -> int:
    homes = _all_reachable(tensors)
    places = _views(homes, tensors)
    set_id, kept = process_set.process_set_id, _all_kept(homes, tensors)
    numbers = rounded(numbers, tensors[0])
    return submit_group(kind, places, None, set_id, name, kept, list(tensors), from_output, *numbers)


def _views(homes: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[View]:
    return [view(home, tensor) for home, tensor in zip(homes, tensors, strict=True)]


def _all_kept(homes: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [_kept(home, tensor) for home, tensor in zip(homes, tensors, strict=True)]


def _all_reachable(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            raise HorovodInternalError(
                f"the tensors of a group must be on one device, but one is on {device} and another on {tensor.device}."
            )
    return [reachable(tensor) for tensor in tensors]
