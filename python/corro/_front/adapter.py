"""What a front gives the engine for each tensor: where its elements are, and what they are."""

from __future__ import annotations

from collections.abc import Sequence

# address, shape, dtype (Horovod's number, see `corro_core::dtype`), device (-1: the CPU)
View = tuple[int, Sequence[int], int, int]

CPU = -1
UINT8 = 0
INT64 = 5
