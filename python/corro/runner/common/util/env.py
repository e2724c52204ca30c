"""Rank and size from the environment, before `init`."""

from __future__ import annotations

from corro._native import foreign, setting

_PAIRS = (
    (setting, "RANK", "SIZE"),
    (foreign, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    (foreign, "PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """What the launcher says, whichever it is; (0, 1) without one."""
    for read, rank_name, size_name in _PAIRS:
        rank, size = read(rank_name), read(size_name)
        if rank is not None and size is not None:
            return int(rank), int(size)
        if rank is not None or size is not None:
            raise RuntimeError(f"only one of {rank_name} and {size_name} is set: both are needed, or neither.")
    return 0, 1
