"""What the environment says before `init`, and which of its variables are meant for other processes."""

from __future__ import annotations

import re

from corro._native import foreign, setting

__all__ = ["IGNORE_REGEXES", "get_env_rank_and_size", "is_exportable"]

# Functions of the shell, where it was before, what was chosen for this process alone, and the secret.
IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", "_HOROVOD_SECRET_KEY"}

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


def is_exportable(v: str) -> bool:
    """Whether the variable of this name is handed on to the processes of a job."""
    return not any(re.match(f"{pattern}$", v) for pattern in IGNORE_REGEXES)
