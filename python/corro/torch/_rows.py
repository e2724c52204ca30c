"""Rows of tables, added to by their numbers: what torch's `index_add_` does, which takes several times as long on a CPU."""

from __future__ import annotations

import math

import torch

from corro import _native
from corro.torch._tensors import DTYPES


def add_rows(table: torch.Tensor, to: torch.Tensor, rows: torch.Tensor) -> None:
    """Adds each of `rows` to that of a table which has its number, one after the other: always the same bits."""
    if table.device.type != "cpu" or table.dtype not in DTYPES or not table.is_contiguous() or to.dtype != torch.int64:
        table.index_add_(0, to, rows)
        return
    if len(to) != len(rows) or rows.shape[1:] != table.shape[1:] or rows.dtype != table.dtype:
        raise ValueError(
            f"{len(to)} numbers and rows of the shape {tuple(rows.shape)}, for a table of {tuple(table.shape)}."
        )
    # Held until the call returns.
    tensors = [table, to.contiguous(), rows.contiguous()]
    places = [(one.data_ptr(), one.numel() * one.element_size()) for one in tensors]
    _native.add_rows(DTYPES[table.dtype], math.prod(table.shape[1:]) * table.element_size(), *places)


def sum_rows(rows: torch.Tensor, to: torch.Tensor, count: int) -> torch.Tensor:
    """A new table of so many rows, with the sums of those of `rows` that have the same number."""
    table = torch.zeros(count, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
    add_rows(table, to, rows)
    return table
