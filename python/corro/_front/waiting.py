"""What needs no tensor, and is therefore the same for every front: waiting for operations and for other ranks."""

from __future__ import annotations

from typing import Any

from corro import _native
from corro._front.process_sets import ProcessSet, global_process_set


def poll(handle: int) -> bool:
    """Whether the operation has ended, so that `synchronize` would not wait. Raises `ValueError` for an unknown handle.

    Example:
        >>> tensor = hvd.shared_empty(1000)
        >>> handle = hvd.allreduce_async_(tensor)
        >>> while not hvd.poll(handle):
        ...     pass  # something useful
        >>> result = hvd.synchronize(handle)
    """
    return _native.poll(handle)


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous operation and gives its result. A handle can be used once.

    A signal handler that raises, as that of Ctrl-C does, ends the wait; the handle is then still good. Raises
    `HorovodInternalError` if the operation has failed.

    Example:
        >>> tensor = hvd.shared_empty(1000)
        >>> handle = hvd.allreduce_async_(tensor)
        >>> hvd.synchronize(handle) is tensor
        True
    """
    return _native.wait(handle)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks of the set are here.

    Example:
        >>> hvd.barrier()
    """
    _native.barrier(process_set.process_set_id)


def join() -> int:
    """This rank has no more data: until all have joined it takes part with zeros. Gives the rank that joined last.

    Example:
        >>> last = hvd.join()  # when a rank has fewer batches than the others
        >>> 0 <= last < hvd.size()
        True
    """
    return _native.join()
