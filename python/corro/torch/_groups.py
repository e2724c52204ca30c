"""Which gradients are reduced together."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch

from corro._environment import flag
from corro._front import basics

# Gradients of so many bytes are worth a collective of their own while backward goes on.
BUCKET_BYTES = 1 << 20
# On a GPU they are reduced a hundred times as fast, and what counts is the host's time for each collective.
GPU_BUCKET_BYTES = 8 << 20


class Group:
    """Parameters whose gradients are reduced together."""

    def __init__(self, members: Sequence[torch.Tensor]) -> None:
        self.members = tuple(members)
        self.start_over()

    def start_over(self) -> None:
        self.waits_for = len(self.members)
        self.submitted = False


def buckets(parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """What is reduced together: a few small gradients that come one after the other, as handing over each costs time.

    Without idle cores it is all of them: collectives in the background would only take turns with backward. Those of GPUs
    need none. `CORRO_OVERLAP` (0 or 1) overrules it.
    """
    on_gpu = bool(parameters) and parameters[0].is_cuda
    enough = (GPU_BUCKET_BYTES if on_gpu else BUCKET_BYTES) if flag("OVERLAP", on_gpu or _has_idle_cores()) else math.inf
    buckets: list[list[torch.Tensor]] = [[]]
    filled = 0
    # Backward makes the gradients of the last layers first.
    for p in reversed(parameters):
        if filled >= enough:
            buckets.append([])
            filled = 0
        buckets[-1].append(p)
        filled += p.numel() * p.element_size()
    return buckets


def _has_idle_cores() -> bool:
    """Whether this host has cores that the ranks' own threads leave free."""
    return len(os.sched_getaffinity(0)) > basics.local_size() * torch.get_num_threads()
