"""Rows of tables, taken and added to by their numbers, and lists of such numbers: what torch has operations for, which take
several times as long on a CPU."""

from __future__ import annotations

import math

import torch

from corro import _native
from corro.torch._tensors import DTYPES


def add_rows(table: torch.Tensor, to: torch.Tensor, rows: torch.Tensor) -> None:
    """Adds each of `rows` to that of a table which has its number, one after the other: always the same bits."""
    if not _native_can(table, to, rows):
        table.index_add_(0, to, rows)
        return
    if len(to) != len(rows) or rows.shape[1:] != table.shape[1:] or rows.dtype != table.dtype:
        raise ValueError(
            f"{len(to)} numbers and rows of the shape {tuple(rows.shape)}, for a table of {tuple(table.shape)}."
        )
    # Held until the call returns.
    to, rows = to.contiguous(), rows.contiguous()
    _native.add_rows(DTYPES[table.dtype], _row_bytes(table), _place(table), _place(to), _place(rows))


def sum_rows(rows: torch.Tensor, to: torch.Tensor, count: int) -> torch.Tensor:
    """A new table of so many rows, with the sums of those of `rows` that have the same number."""
    table = torch.zeros(count, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
    add_rows(table, to, rows)
    return table


def take_rows(table: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    """The rows of a table that have these numbers."""
    if not _native_can(table, which):
        return torch.index_select(table, 0, which)
    which = which.contiguous()
    taken = torch.empty(len(which), *table.shape[1:], dtype=table.dtype)
    _native.take_rows(_row_bytes(table), _place(taken), _place(which), _place(table))
    return taken


def distinct(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers, each once, in the order in which they first come (on a GPU: sorted); and which of them each is."""
    if numbers.device.type != "cpu":
        return torch.unique(numbers, return_inverse=True)
    numbers = numbers.contiguous()
    found, which = torch.empty_like(numbers), torch.empty_like(numbers)
    count = _native.distinct(_place(numbers), _place(found), _place(which))
    return found[:count], which


def deal(numbers: torch.Tensor, hands: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Number n goes to n mod `hands`, as n / `hands`: those of the first, then of the second, and so on; where each number
    has gone; and how many each has got."""
    if numbers.device.type != "cpu":
        here, places, counts = deal(numbers.cpu(), hands)
        return here.to(numbers.device), places.to(numbers.device), counts
    numbers = numbers.contiguous()
    dealt, moved = torch.empty_like(numbers), torch.empty_like(numbers)
    each = _native.deal(_place(numbers), hands, _place(dealt), _place(moved))
    return dealt, moved, torch.tensor(each, dtype=torch.int32)


def _native_can(table: torch.Tensor, numbers: torch.Tensor, *more: torch.Tensor) -> bool:
    """Whether all lie in memory of the host, as the kernels read it. Torch does the rest, or says what is wrong."""
    here = all(tensor.device.type == "cpu" for tensor in (table, numbers, *more))
    return here and table.dtype in DTYPES and table.is_contiguous() and numbers.dtype == torch.int64


def _row_bytes(table: torch.Tensor) -> int:
    return math.prod(table.shape[1:]) * table.element_size()


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()
