"""Corro: data-parallel training for every framework. A script written for Horovod runs on it unchanged.

`corro.torch`, `corro.tensorflow`, `corro.keras`, `corro.jax`, `corro.mxnet` and `corro.numpy` are the fronts; this
module offers what needs no framework at all. It imports quickly and without any framework installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corro._errors import HorovodInternalError, HostsUpdatedInterrupt
from corro._front.arguments import Adasum, Average, Max, Min, Product, Sum
from corro._front.basics import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from corro._front.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from corro._front.watching import log

if TYPE_CHECKING:
    from corro.runner import run
else:

    def __getattr__(name: str) -> Any:
        # `run` brings subprocess and the like; most programs that import corro are themselves started by it.
        if name == "run":
            from corro.runner import run

            return run
        raise AttributeError(f"module 'corro' has no attribute {name!r}")


__version__ = "0.1.0"

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "log",
    "rank",
    "remove_process_set",
    "run",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
