"""Starting and ending the engine, and asking it who we are."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from corro import _native
from corro._environment import flag, setting
from corro._front import last_words, mpi, watching
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
# Called before every shutdown, unless the program has failed: what was begun is to be ended.
_before_leaving: list[Callable[[], None]] = []
_before_restart: list[Callable[[], None]] = []
# Called after every shutdown; an elastic restart must not meet anything of the run before.
_after_shutdown: list[Callable[[], None]] = []
# Whether MPI has told this process who it is.
_by_mpi = False


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job that the launcher has started; without a launcher, a job of one rank. A second call does nothing.

    `process_sets` is a list of sets to register, or "dynamic" to allow adding and removing them later. `comm` is the world:
    a communicator of mpi4py, or a list of ranks; some of the ranks of MPI are a world of their own (with mpi4py). Raises
    `ValueError` for a `comm` that can't be one, and `HorovodInternalError` if the other ranks do not come.

    Example:
        >>> hvd.init()
        >>> hvd.is_initialized()
        True
    """
    ranks = _ranks_of(comm)
    if ranks and sets.has_communicators(process_sets):
        raise NotImplementedError("process sets from communicators need a communicator as `comm`, or none at all.")
    last_words.listen(_when_it_fails, _at_exit)
    started = not _native.is_initialized()
    while started and elastic_enabled() and _before_waiting:
        _before_waiting.pop()()
    if started:
        _tell_where_nccl_is()
    with _world(comm, ranks, started) as part:
        # Does nothing the second time, but for a process that was forked from a rank: there it says so.
        _native.init()
    if started:
        watching.listen()
    if started and elastic_enabled():
        _tell_environment()
    if ranks and not part and ranks != list(range(_native.size())):
        if started:
            shutdown()
        raise ValueError(
            f"init(comm={ranks}) asks for a part of the world as a world of its own, which needs MPI: start the job with "
            f"mpirun, and install mpi4py. Or use a process set: hvd.init(process_sets=[hvd.ProcessSet({ranks})])."
        )
    sets.start(process_sets)


@contextlib.contextmanager
def _world(comm: Any, ranks: list[int], started: bool) -> Iterator[bool]:
    """While the engine starts: whose world it is to have. Gives whether the list of ranks is taken care of."""
    global _by_mpi
    if not started or elastic_enabled():
        yield False
        return
    whole = ranks and ranks == list(range(len(ranks)))
    if mpi.is_communicator(comm):
        # One of our own: the program may free its.
        found = comm.Dup()
    elif ranks:
        found = None if whole and not mpi.is_asked_for() else mpi.part_of_the_world(ranks)
    else:
        found = mpi.world()
    if found is None:
        yield False
        return
    _by_mpi = True
    with mpi.told(found):
        yield True


def _ranks_of(comm: Any) -> list[int]:
    """The world ranks `comm` lists; empty for "all", and for a communicator."""
    if comm is None or mpi.is_communicator(comm):
        return []
    if not isinstance(comm, Iterable):
        raise ValueError(f"init(comm=...) takes a list of ranks or an MPI communicator, not {type(comm).__name__}.")
    return sorted(int(rank) for rank in comm)


def shutdown() -> None:
    """Leaves the job. Operations that other ranks still wait for fail with "Horovod has been shut down".

    Called by itself when Python ends. Harmless where there is no job.

    Example:
        >>> hvd.shutdown()
        >>> hvd.is_initialized()
        False
    """
    _finish()
    _native.shutdown(last_words.handled())
    sets.stop()
    for forget in _after_shutdown:
        forget()


def _finish() -> None:
    if _native.is_initialized() and not last_words.has_failed():
        for finish in _before_leaving:
            finish()


def _when_it_fails() -> None:
    last_words.say()
    shutdown()


def _at_exit() -> None:
    last_words.say()
    _finish()
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


def before_leaving(finish: Callable[[], None]) -> None:
    """Has `finish` called before every shutdown of a program that has not failed.

    For frameworks that run behind the program: the other ranks need what is still under way here.
    """
    _before_leaving.append(finish)


def before_restart(leave: Callable[[], None]) -> None:
    """Has `leave` called when the ranks of an elastic job change, before those that are left meet anew."""
    _before_restart.append(leave)


def restart(process_sets: Any) -> None:
    """Leaves the ranks there were and meets those there are now."""
    for leave in _before_restart:
        leave()
    shutdown()
    init(process_sets=process_sets)


def after_shutdown(forget: Callable[[], None]) -> None:
    """Has `forget` called after every shutdown."""
    _after_shutdown.append(forget)


def is_initialized() -> bool:
    """Whether this process belongs to a job: after `init`, before `shutdown`.

    Example:
        >>> hvd.is_initialized()
        True
    """
    return _native.is_initialized()


def rank() -> int:
    """This process's number in the job, from 0 to `size() - 1`. Raises `ValueError` before `init`.

    Example:
        >>> writes_checkpoints = hvd.rank() == 0
    """
    return _native.rank()


def size() -> int:
    """How many ranks the job has. Raises `ValueError` before `init`.

    Example:
        >>> hvd.size()
        2
    """
    return _native.size()


def local_rank() -> int:
    """This process's number among those of its host: which GPU to take. Raises `ValueError` before `init`.

    Example:
        >>> device = f"cuda:{hvd.local_rank()}"
    """
    return _native.local_rank()


def local_size() -> int:
    """How many ranks this host has. Raises `ValueError` before `init`.

    Example:
        >>> hvd.local_size()
        2
    """
    return _native.local_size()


def cross_rank() -> int:
    """The number of this host among those that have a process with this local rank. Raises `ValueError` before `init`.

    Example:
        >>> hvd.cross_rank()
        0
    """
    return _native.cross_rank()


def cross_size() -> int:
    """How many hosts have a process with this local rank. Raises `ValueError` before `init`.

    Example:
        >>> hvd.cross_size()
        1
    """
    return _native.cross_size()


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks.

    Example:
        >>> hvd.is_homogeneous()
        True
    """
    return not _native.is_initialized() or _native.is_homogeneous()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records what happens to each tensor into `file_path`, from now on. Call it on all ranks.

    Open the file with Perfetto or chrome://tracing. `mark_cycles` also marks each turn of the engine. Raises `ValueError`
    unless `CORRO_TIMELINE` (or `HOROVOD_TIMELINE`) was set when the job started, to a path or to DYNAMIC.

    Example:
        >>> import os
        >>> hvd.shutdown()
        >>> os.environ["CORRO_TIMELINE"] = "DYNAMIC"  # or where the job is started
        >>> hvd.init()
        >>> hvd.start_timeline("trace.json")
        >>> hvd.stop_timeline()
    """
    _native.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the recording that `start_timeline` has begun. Harmless where there is none.

    Example:
        >>> hvd.stop_timeline()
    """
    _native.stop_timeline()


# What Horovod was compiled with. Corro carries its own transport, which stands where Gloo stood, and finds MPI at run time.
def mpi_threads_supported() -> bool:
    """Whether any thread may call MPI, so that a program may use it beside Corro. Raises `ValueError` where MPI is not used.

    Example:
        >>> if hvd.mpi_enabled():
        ...     print(hvd.mpi_threads_supported())
    """
    if not mpi_enabled():
        raise ValueError(
            "Horovod MPI is not enabled: nothing asks for it (`comm`, HOROVOD_CONTROLLER, HOROVOD_CPU_OPERATIONS)."
        )
    return mpi.threads_supported()


def mpi_enabled() -> bool:
    """Whether MPI says who ranks are, or moves their tensors: if `init` got a communicator, or the environment asks for it
    (`HOROVOD_CONTROLLER=mpi`, `HOROVOD_CPU_OPERATIONS=mpi`).

    Example:
        >>> hvd.mpi_enabled()
        False
    """
    return _by_mpi or mpi.is_asked_for()


def mpi_built() -> bool:
    """Whether MPI can be used here: mpi4py is installed, or an `mpiexec` has started this process.

    Example:
        >>> if hvd.mpi_built():
        ...     print("communicators may be given to init")
    """
    return mpi.is_here()


def gloo_enabled() -> bool:
    """Whether ranks talk without MPI: always.

    Example:
        >>> hvd.gloo_enabled()
        True
    """
    return True


def gloo_built() -> bool:
    """Whether there is a transport other than MPI: always, Corro's own.

    Example:
        >>> hvd.gloo_built()
        True
    """
    return True


def nccl_built() -> int:
    """The version of NCCL that ranks would use on this machine's GPUs (22809 is 2.28.9); 0 if there is none.

    It is looked for when this is called: none is built in.

    Example:
        >>> hvd.nccl_built() if hvd.cuda_built() else 0
        0
    """
    _tell_where_nccl_is()
    return _native.nccl_version()


def _tell_where_nccl_is() -> None:
    """Frameworks bring NCCL as a package, and may not have loaded it yet. Nothing is opened here: no driver either."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return
    for folder in found.submodule_search_locations or [] if found else []:
        _native.also_look_for_nccl_in(os.path.join(folder, "lib"))


def ddl_built() -> bool:
    """Whether IBM's DDL is built in: never.

    Example:
        >>> hvd.ddl_built()
        False
    """
    return False


def ccl_built() -> bool:
    """Whether Intel's oneCCL is built in: never.

    Example:
        >>> hvd.ccl_built()
        False
    """
    return False


def cuda_built() -> bool:
    """Whether this machine has GPUs that ranks can use: a driver and a GPU were found.

    Example:
        >>> hvd.cuda_built()
        False
    """
    return _native.takes_gpu_memory()


def rocm_built() -> bool:
    """Whether ROCm is built in: not yet.

    Example:
        >>> hvd.rocm_built()
        False
    """
    return False


def elastic_enabled() -> bool:
    """Whether this process belongs to an elastic job, one that was started with `corro run --min-np N`.

    Example:
        >>> hvd.elastic_enabled()
        False
    """
    return flag("ELASTIC")


if setting("STATEMENTS") is not None:
    # Whoever has started this process is told why it fails, also if that is before `init`.
    last_words.listen(_when_it_fails, _at_exit)
