"""What a front gives the engine for each tensor: where its elements are, and what they are."""

from __future__ import annotations

from collections.abc import Sequence

# address, shape, dtype (Horovod's number, see `corro_core::dtype`), device (-1: the CPU); and, if the address is that of
# memory on a GPU, the stream on which it was written
View = tuple[int, Sequence[int], int, int] | tuple[int, Sequence[int], int, int, int]

CPU = -1
UINT8 = 0
INT64 = 5
