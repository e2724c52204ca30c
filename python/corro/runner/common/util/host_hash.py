"""A name for this host that containers on one machine don't share."""

from __future__ import annotations

import hashlib
import os
import socket

__all__ = ["host_hash"]

_NAMESPACES = "/proc/self/ns"


def host_hash(salt: str | None = None) -> str:
    """`<host>-<digest>`: the digest is over the host's full name and the namespaces this process lives in.

    Processes with the same hash can share memory. A `salt` tells apart what would otherwise be the same.
    """
    name = socket.gethostname()
    parts = [name, *_namespaces(), *([] if salt is None else [str(salt)])]
    digest = hashlib.md5("-".join(parts).encode(), usedforsecurity=False).hexdigest()
    return f"{name.split('.')[0]}-{digest}"


def _namespaces() -> list[str]:
    """What the system calls the namespaces of this process."""
    try:
        return [os.readlink(os.path.join(_NAMESPACES, kind)) for kind in sorted(os.listdir(_NAMESPACES))]
    except OSError:
        return []  # a system without them
