"""What compiled programs hold that is true only as long as the ranks are who they are.

Most of them hold nothing of the kind: an average, a broadcast or a group of gradients is the same program for any number of
ranks. But the shape of what an allgather gives depends on how many there are, and so does all that a program makes of
`hvd.size()` and `hvd.rank()`. When an elastic job changes, JAX is to forget what it has compiled if any of that was traced.
"""

from __future__ import annotations

import jax

from corro import _native
from corro._front import basics
from corro.jax._versions import trace_state_clean

# What was used while something was traced.
_used: set[str] = set()
# The ranks for which that is true: epoch's size and own rank.
_ranks: tuple[int, int] | None = None


def used(what: str) -> None:
    """Says that a program being traced depends on the ranks by `what`."""
    global _ranks
    if not trace_state_clean():
        _used.add(what)
        _ranks = (_native.size(), _native.rank())


def forget_if_changed() -> bool:
    """Has JAX compile anew if a program may hold what is no longer true. True if so."""
    global _ranks
    if not _used or _ranks == (_native.size(), _native.rank()):
        return False
    jax.clear_caches()
    _used.clear()
    _ranks = None
    return True


def _asked(name: str) -> int:
    number: int = getattr(basics, name)()
    used(f"hvd.{name}()")
    return number


def rank() -> int:
    """This process's number in the job, from 0 to `size() - 1`. Raises `ValueError` before `init`.

    In a function that is being compiled it is a constant: an elastic job whose ranks change compiles it anew.

    Example:
        >>> writes_checkpoints = hvd.rank() == 0
    """
    return _asked("rank")


def size() -> int:
    """How many ranks the job has. Raises `ValueError` before `init`.

    In a function that is being compiled it is a constant: an elastic job whose ranks change compiles it anew.

    Example:
        >>> hvd.size()
        2
    """
    return _asked("size")


def local_rank() -> int:
    """This process's number among those of its host: which GPU to take. Raises `ValueError` before `init`.

    In a function that is being compiled it is a constant: an elastic job whose ranks change compiles it anew.

    Example:
        >>> 0 <= hvd.local_rank() < hvd.local_size()
        True
    """
    return _asked("local_rank")


def local_size() -> int:
    """How many ranks this host has. Raises `ValueError` before `init`.

    In a function that is being compiled it is a constant: an elastic job whose ranks change compiles it anew.

    Example:
        >>> hvd.local_size()
        2
    """
    return _asked("local_size")


def cross_rank() -> int:
    """The number of this host among those that have a process with this local rank. Raises `ValueError` before `init`.

    In a function that is being compiled it is a constant: an elastic job whose ranks change compiles it anew.

    Example:
        >>> hvd.cross_rank()
        0
    """
    return _asked("cross_rank")


def cross_size() -> int:
    """How many hosts have a process with this local rank. Raises `ValueError` before `init`.

    In a function that is being compiled it is a constant: an elastic job whose ranks change compiles it anew.

    Example:
        >>> hvd.cross_size()
        1
    """
    return _asked("cross_size")
