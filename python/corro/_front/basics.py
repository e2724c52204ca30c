"""Starting and ending the engine, and asking it who we are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from corro import _native
from corro._environment import flag, setting
from corro._front import last_words
from corro._front import process_sets as sets

# What every front offers under the same name.
__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

# Called once, before this process first waits for a place in an elastic job.
_before_waiting: list[Callable[[], None]] = []
# Called after every shutdown; an elastic restart must not meet anything of the run before.
_after_shutdown: list[Callable[[], None]] = []


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job that the environment describes (or a world of one). Does nothing more when that has happened already.

    `process_sets` is a list of sets to register, or "dynamic" to allow adding and removing them later.
    """
    ranks = _ranks_of(comm)
    last_words.listen(_when_it_fails, _at_exit)
    started = not _native.is_initialized()
    while started and elastic_enabled() and _before_waiting:
        _before_waiting.pop()()
    # Does nothing the second time, but for a process that was forked from a rank: there it says so.
    _native.init()
    if started and elastic_enabled():
        _tell_environment()
    if ranks and ranks != list(range(_native.size())):
        if started:
            shutdown()
        raise ValueError(
            f"init(comm={ranks}) asks for a part of the world as a world of its own, which needs MPI. "
            f"Use a process set: hvd.init(process_sets=[hvd.ProcessSet({ranks})])."
        )
    sets.start(process_sets)


def _ranks_of(comm: Any) -> list[int]:
    """The world ranks `comm` lists; empty for "all"."""
    if comm is None:
        return []
    if hasattr(comm, "Get_rank"):
        raise ValueError("init was given an MPI communicator, but Horovod MPI support has not been built into Corro.")
    if not isinstance(comm, Iterable):
        raise ValueError(f"init(comm=...) takes a list of ranks or an MPI communicator, not {type(comm).__name__}.")
    return sorted(int(rank) for rank in comm)


def shutdown() -> None:
    """Ends the job on all ranks: what is pending there fails with "Horovod has been shut down". Harmless if not running."""
    _native.shutdown(last_words.handled())
    sets.stop()
    for forget in _after_shutdown:
        forget()


def _when_it_fails() -> None:
    last_words.say()
    shutdown()


def _at_exit() -> None:
    last_words.say()
    # The driver of an elastic job must know whether this rank has finished, or is one to be replaced.
    if elastic_enabled() and not last_words.has_failed():
        _native.leave()
    shutdown()


def _tell_environment() -> None:
    """The launcher of an elastic job cannot say who a process will be; programs that look there find it now."""
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        os.environ[f"HOROVOD_{name.upper()}"] = str(getattr(_native, name)())


def before_waiting(prepare: Callable[[], None]) -> None:
    """Has `prepare` called before this process first asks for a place in an elastic job.

    A spare may wait there for long, and once it has a place the others wait for it.
    """
    _before_waiting.append(prepare)


def after_shutdown(forget: Callable[[], None]) -> None:
    """Has `forget` called after every shutdown."""
    _after_shutdown.append(forget)


is_initialized = _native.is_initialized
rank = _native.rank
size = _native.size
local_rank = _native.local_rank
local_size = _native.local_size
cross_rank = _native.cross_rank
cross_size = _native.cross_size


def is_homogeneous() -> bool:
    """Whether every host runs the same number of ranks."""
    return not _native.is_initialized() or _native.is_homogeneous()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records what happens to each tensor into `file_path`, from now on. Call it on all ranks.

    Needs `HOROVOD_TIMELINE` to be set when the job starts, to a path or to DYNAMIC.
    """
    _native.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the recording; harmless when there is none."""
    _native.stop_timeline()


# What Horovod was compiled with. Corro carries its own transport, which stands where Gloo stood.
def mpi_threads_supported() -> bool:
    raise ValueError("Horovod MPI is not enabled; Corro does not need it.")


def mpi_enabled() -> bool:
    return False


def mpi_built() -> bool:
    return False


def gloo_enabled() -> bool:
    return True


def gloo_built() -> bool:
    return True


def nccl_built() -> int:
    return 0


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    return False


def rocm_built() -> bool:
    return False


def elastic_enabled() -> bool:
    """Whether this process belongs to an elastic job."""
    return flag("ELASTIC")


if setting("STATEMENTS") is not None:
    # Whoever has started this process is told why it fails, also if that is before `init`.
    last_words.listen(_when_it_fails, _at_exit)
