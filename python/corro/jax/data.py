"""Which part of the data is this rank's: for plain Python iterables and sequences, and for `grain`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from corro._front import basics
from corro._front.process_sets import ProcessSet, global_process_set
from corro._front.sampler import Order, share

__all__ = ["indices", "shard", "shard_options"]

T = TypeVar("T")


def _place(process_set: ProcessSet) -> tuple[int, int]:
    return process_set.rank() or 0, process_set.size() or basics.size()


def shard(elements: Iterable[T], process_set: ProcessSet = global_process_set) -> Iterator[T]:
    """This rank's elements of what all ranks iterate over: each gets every `size()`-th. All get equally many.

    If the last elements are not enough for every rank, no rank gets them.

    Example:
        >>> list(hvd.data.shard(range(5))) == [hvd.rank(), 2 + hvd.rank()]
        True
    """
    place, count = _place(process_set)
    remaining = iter(elements)
    while len(turn := list(itertools.islice(remaining, count))) == count:
        yield turn[place]


def indices(
    length: int,
    epoch: int = 0,
    shuffle: bool = True,
    seed: int = 0,
    process_set: ProcessSet = global_process_set,
    skip: int = 0,
) -> Sequence[int]:
    """Which of `length` samples are this rank's in an epoch, in the order in which to take them. All get equally many.

    Each epoch has another order, which is the same on all ranks. If the samples can't be dealt out evenly, some of them
    are dealt twice. `skip` says how many all ranks together have done of this epoch: when an elastic job goes on with
    other ranks, those deal out the rest.

    Example:
        >>> mine = hvd.data.indices(5, epoch=1)
        >>> sorted(set(sum(hvd.allgather_object(list(mine)), [])))
        [0, 1, 2, 3, 4]
    """
    place, count = _place(process_set)
    return share(Order(length, shuffle).left(seed + epoch, skip), place, count, pad=True)


def shard_options(drop_remainder: bool = True, process_set: ProcessSet = global_process_set) -> Any:
    """What `grain`'s samplers and data loaders take as `shard_options`, so that each rank loads its own part.

    `grain.sharding.ShardByJaxProcess` would give every rank everything: to JAX each rank is a job of its own. Raises
    `ImportError` where `grain` is not installed.

    Example:
        >>> try:
        ...     options = hvd.data.shard_options()
        ... except ImportError:
        ...     print("pip install grain")  # doctest: +SKIP
    """
    import grain.python as grain

    place, count = _place(process_set)
    return grain.ShardOptions(shard_index=place, shard_count=count, drop_remainder=drop_remainder)
