"""Which rank sits where, by the nodes that workers run on, and where all meet."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Seat", "meeting_place", "seats"]


@dataclass(frozen=True)
class Seat:
    """A worker's place in its job, and the node it is on."""

    node: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def variables(self) -> dict[str, str]:
        """What a process must have in its environment to take this seat."""
        return {
            "HOROVOD_HOSTNAME": self.node,
            "HOROVOD_RANK": str(self.rank),
            "HOROVOD_SIZE": str(self.size),
            "HOROVOD_LOCAL_RANK": str(self.local_rank),
            "HOROVOD_LOCAL_SIZE": str(self.local_size),
            "HOROVOD_CROSS_RANK": str(self.cross_rank),
            "HOROVOD_CROSS_SIZE": str(self.cross_size),
        }


def seats(nodes: Sequence[str]) -> list[Seat]:
    """The seats of workers on these nodes; a worker's rank is its place in the list."""
    order = list(dict.fromkeys(nodes))
    counts = {node: nodes.count(node) for node in order}
    taken = dict.fromkeys(order, 0)
    found = []
    for rank, node in enumerate(nodes):
        local = taken[node]
        taken[node] += 1
        # Nodes with as many workers as it takes to have one of this number, in the order in which nodes appear.
        across = [other for other in order if counts[other] > local]
        found.append(
            Seat(node, rank, len(nodes), local, counts[node], across.index(node), len(across)),
        )
    return found


def meeting_place(address: str, port: int) -> dict[str, str]:
    """Where rank 0 listens, and a new secret. It travels in Ray's own messages, not on a command line."""
    token = secrets.token_hex(32)
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "CORRO_RENDEZVOUS_PORT": str(port),
        "CORRO_SECRET": token,
        "CORRO_JOB_ID": f"ray-{token[:16]}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
