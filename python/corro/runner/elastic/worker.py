"""What a change of the hosts was."""

from __future__ import annotations

from corro._front.elastic import ADDED, REMOVED


class HostUpdateResult:
    """Horovod's numbers; `mixed` is both."""

    no_update = 0
    removed = REMOVED
    added = ADDED
    mixed = REMOVED | ADDED
