"""Which GPU a training process takes."""

from __future__ import annotations

from corro import _native
from corro.spark.task import get_available_devices

__all__ = ["gpu_number"]


def gpu_number(local_rank: int) -> int:
    """The one that Spark has given to this process's task, or that of the local rank where Spark was not told of any."""
    given = get_available_devices()
    if given and not _native.flag("SPARK_USE_LOCAL_RANK_GPU_INDEX"):
        return int(given[0])
    return local_rank
