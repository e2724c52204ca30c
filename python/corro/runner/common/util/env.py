"""Rank and size from the environment, before `init`."""

from __future__ import annotations

import os

_PAIRS = (
    ("CORRO_RANK", "CORRO_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """What the launcher says, whichever it is; (0, 1) without one."""
    for rank_name, size_name in _PAIRS:
        rank, size = os.environ.get(rank_name), os.environ.get(size_name)
        if rank is not None and size is not None:
            return int(rank), int(size)
        if rank is not None or size is not None:
            raise RuntimeError(f"only one of {rank_name} and {size_name} is set: both are needed, or neither.")
    return 0, 1
