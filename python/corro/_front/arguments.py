"""What a call may say: one rule in one place, for every front."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from corro import _native
from corro._errors import HorovodInternalError
from corro._front.process_sets import ProcessSet, global_process_set

# Horovod's numbers.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

OP_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


def reduction(op: int | None, average: bool | None, process_set: ProcessSet) -> int:
    """The reduce op that `op` and its predecessor `average` ask for."""
    if average is not None:
        op = _from_average(op, average)
    elif op is None:
        return Average
    if op == Adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum works on the global process set only.")
    return op


def _from_average(op: int | None, average: bool) -> int:
    if op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn("average is deprecated: say op=hvd.Average or op=hvd.Sum.", DeprecationWarning, stacklevel=4)
    return Average if average else Sum


def scatter_reduction(op: int) -> int:
    """The reduce op of a reducescatter."""
    if op not in (Average, Sum):
        name = OP_NAMES[op] if op in range(len(OP_NAMES)) else op
        raise HorovodInternalError(f"reducescatter supports Sum and Average, not {name}.")
    return op


def non_empty(tensors: Sequence[Any]) -> Sequence[Any]:
    """The tensors of a group."""
    if not isinstance(tensors, (list, tuple)):
        tensors = list(tensors)
    if not tensors:
        raise ValueError("a grouped operation needs at least one tensor.")
    return tensors


def set_size(process_set: ProcessSet) -> int:
    """How many ranks take part."""
    return len(process_set.ranks or ())


def rows_per_rank(rows: int, size: int) -> list[int]:
    """How a reducescatter deals `rows` to `size` ranks: the first ones get one more."""
    # Division only, so that it also works on the symbols a compiler has for unknown numbers.
    return [(rows + size - 1 - rank) // size for rank in range(size)]


def require_rows(kind: str, shape: Sequence[Any]) -> None:
    """Refuses a scalar where the operation works on rows."""
    if not len(shape):
        raise ValueError(f"{kind} of a rank-zero tensor is not supported: a scalar has no rows. Use tensor.reshape(1).")


def rows_to_send(shape: Sequence[int], splits: Any, dimensions: int, process_set: ProcessSet) -> list[int]:
    """The rows of an alltoall for each rank, checked; empty means equal parts. `dimensions` are those of `splits`."""
    _native.rank()  # raises when not initialised
    require_rows("alltoall", shape)
    if dimensions > 1:
        raise ValueError(f"splits must be one-dimensional, but have {dimensions} dimensions.")
    # A set that is not registered has no size to compare with; the engine refuses it.
    return alltoall_splits(splits, shape[0], set_size(process_set) or 1)


def alltoall_splits(splits: Sequence[int], rows: int, size: int) -> list[int]:
    """The rows for each rank, checked; empty means equal parts."""
    numbers = [int(split) for split in splits]
    if not numbers:
        if rows % size:
            raise ValueError(
                f"alltoall without splits needs a first dimension divisible by the number of workers, "
                f"but {rows} rows cannot be divided by {size}. Give splits."
            )
        return numbers
    if len(numbers) != size:
        raise ValueError(f"the number of splits ({len(numbers)}) does not equal number of workers ({size}).")
    if min(numbers) < 0:
        raise ValueError(f"splits must not be negative, but they are {numbers}.")
    if sum(numbers) > rows:
        raise ValueError(f"the sum of splits ({sum(numbers)}) is greater than the first dimension ({rows}).")
    return numbers
