"""MPI as the one who knows the ranks: worlds and process sets from communicators of mpi4py.

mpi4py is the program's own, and MPI is started and ended by it. Nothing here is imported before a program asks for it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import socket
from collections.abc import Iterator
from typing import Any

from corro._environment import setting

# By these an MPI's launcher is known.
_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_NAMESPACE", "JSM_NAMESPACE_SIZE")
# What says where ranks meet, and who they are: for a world of MPI's all of it is said anew.
_TOLD = (
    *("CORRO_RANK", "CORRO_SIZE", "CORRO_LOCAL_RANK", "CORRO_LOCAL_SIZE", "CORRO_CROSS_RANK", "CORRO_CROSS_SIZE"),
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"),
    *("HOROVOD_CROSS_SIZE", "CORRO_RENDEZVOUS", "CORRO_SECRET", "CORRO_RENDEZVOUS_PORT", "MASTER_ADDR", "MASTER_PORT"),
)


def is_communicator(thing: Any) -> bool:
    """Whether it is one of mpi4py's."""
    return hasattr(thing, "Get_rank") and hasattr(thing, "allgather")


def is_here() -> bool:
    """Whether a program can use MPI here: mpi4py is installed, or an MPI's launcher has started this process."""
    return importlib.util.find_spec("mpi4py") is not None or any(name in os.environ for name in _LAUNCHERS)


def is_asked_for() -> bool:
    """Whether the environment wants MPI for control or for tensors."""
    return "mpi" in ((setting("CONTROLLER") or "").lower(), (setting("CPU_OPERATIONS") or "").lower())


def world() -> Any:
    """All processes that an MPI's launcher has started, if the environment wants MPI for control and mpi4py is here."""
    asked = (setting("CONTROLLER") or "").lower() == "mpi"
    if not asked or importlib.util.find_spec("mpi4py") is None:
        return None
    found = _mpi().COMM_WORLD
    return found if found.Get_size() > 1 else None


def part_of_the_world(ranks: list[int]) -> Any:
    """The world that the listed processes of MPI's world make among themselves. Only they take part."""
    if importlib.util.find_spec("mpi4py") is None:
        return None
    whole = _mpi().COMM_WORLD
    if whole.Get_size() <= max(ranks) or len(set(ranks)) != len(ranks) or min(ranks) < 0:
        return None
    if whole.Get_rank() not in ranks:
        raise ValueError(
            f"init(comm={ranks}) was called by rank {whole.Get_rank()} of MPI's world, which is none of these: each process "
            f"lists the ranks of its own world."
        )
    group = whole.Get_group().Incl(ranks)
    return whole.Create_group(group)


def threads_supported() -> bool:
    """Whether any thread may call MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        # Corro starts MPI itself, and refuses one that lets only one thread call it.
        return True
    mpi = _mpi()
    return bool(mpi.Query_thread() == mpi.THREAD_MULTIPLE)


@contextlib.contextmanager
def told(comm: Any) -> Iterator[None]:
    """For as long as the engine starts: its environment says that its world is that of `comm`."""
    rank, size = comm.Get_rank(), comm.Get_size()
    meeting = None
    # Taken until all know of it, so that no other job of this host gets the same.
    taken = socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    with taken:
        if rank == 0:
            taken.bind(("", 0))
            meeting = (socket.gethostname(), taken.getsockname()[1], secrets.token_hex(32))
        host, port, secret = comm.bcast(meeting, root=0)
    values = {
        "CORRO_RANK": str(rank),
        "CORRO_SIZE": str(size),
        "CORRO_SECRET": secret,
        "CORRO_RENDEZVOUS_PORT": str(port),
        "MASTER_ADDR": _reachable(comm, host),
        "MASTER_PORT": str(port),
    }
    before = {name: os.environ.get(name) for name in _TOLD}
    for name in _TOLD:
        os.environ.pop(name, None)
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _reachable(comm: Any, host: str) -> str:
    """Rank 0's host, as this process can reach it: by its loopback if it is this one, whose name may be in no table."""
    here = socket.gethostname() == host
    return "localhost" if here else host


def members(comm: Any, rank: int) -> list[int] | None:
    """The ranks of a communicator's processes in Corro's world; None if this process is in none."""
    mpi = _mpi()
    if comm == mpi.COMM_NULL:
        return None
    return sorted(comm.allgather(rank))


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI
