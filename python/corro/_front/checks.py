"""Mistakes that otherwise only show as a bad model: checked when `CORRO_CHECKS=1`, at the price of a few small gathers.

| check | mistake |
| --- | --- |
| `same_model` | the ranks have different models |
| `same_parameters` | nobody broadcast the parameters before the first step |
| `different_data` | two ranks train on the same samples |
"""

from __future__ import annotations

import ctypes
import warnings
import zlib
from collections.abc import Mapping
from typing import Any

from corro._environment import flag
from corro._front.objects import allgather_object
from corro._front.process_sets import ProcessSet


class TrainingMistake(RuntimeError):
    """The ranks do something that cannot train one model together."""


def enabled() -> bool:
    # They compare ranks that start together; in an elastic job some come later.
    return flag("CHECKS") and not flag("ELASTIC")


def digest(address: int, nbytes: int, before: int = 0) -> int:
    """A checksum of memory, going on from the one `before`."""
    return zlib.crc32((ctypes.c_char * nbytes).from_address(address), before) if nbytes else before


def same_model(described: Mapping[str, str], process_set: ProcessSet) -> None:
    """`described` says of every parameter what it is: shape and dtype."""
    difference = _difference(described, process_set, "checks.model")
    if difference:
        raise TrainingMistake(f"the ranks have different models: {difference}")


def same_parameters(digests: Mapping[str, int], process_set: ProcessSet) -> None:
    """`digests` says of every parameter which values it has at the first step."""
    difference = _difference(digests, process_set, "checks.parameters")
    if difference:
        raise TrainingMistake(
            f"the ranks start from different parameters: {difference}. Call hvd.broadcast_parameters"
            f"(model.state_dict(), root_rank=0) before the first step, on every rank."
        )


def different_data(gradients: list[tuple[str, int]], process_set: ProcessSet) -> None:
    """`gradients` are the digests of all gradients before they were reduced: equal ones come from equal samples."""
    mine = zlib.crc32(repr(gradients).encode())
    by_digest: dict[int, list[int]] = {}
    for rank, theirs in zip(process_set.ranks or [], _gather(mine, process_set, "checks.data"), strict=True):
        by_digest.setdefault(theirs, []).append(rank)
    for ranks in by_digest.values():
        if len(ranks) > 1:
            warnings.warn(
                f"ranks {ranks} computed exactly the same gradients: they seem to train on the same data. Give each "
                f"rank its own part, for example with DistributedSampler(dataset, num_replicas=hvd.size(), "
                f"rank=hvd.rank()).",
                RuntimeWarning,
                stacklevel=4,
            )


def _difference(mine: Mapping[str, Any], process_set: ProcessSet, name: str) -> str:
    """How the first rank that differs from the first of all does so; "" if none does."""
    everyone = _gather(dict(mine), process_set, name)
    ranks = process_set.ranks or []
    for rank, theirs in zip(ranks[1:], everyone[1:], strict=True):
        for key in everyone[0].keys() | theirs.keys():
            if everyone[0].get(key) != theirs.get(key):
                first, other = everyone[0].get(key, "missing"), theirs.get(key, "missing")
                return f"{key} is {first} on rank {ranks[0]} but {other} on rank {rank}"
    return ""


def _gather(mine: Any, process_set: ProcessSet, name: str) -> list[Any]:
    return allgather_object(mine, name, process_set)
