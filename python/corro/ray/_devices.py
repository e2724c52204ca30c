"""The GPUs that a rank sees. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["visible"]


def visible(own: Sequence[str], on_node: int, local_rank: int) -> str:
    """A value for `CUDA_VISIBLE_DEVICES`, in which the index of the local rank is the first of the rank's own GPUs.

    Programs for Horovod take the GPU of their local rank. Ray gives each actor GPUs of its own, and actors come and go; so
    each rank sees the GPUs of its node in an order that suits it.
    """
    others = [gpu for gpu in map(str, range(on_node)) if gpu not in own]
    before = others[:local_rank] if local_rank <= len(others) else []
    return ",".join([*before, *own, *others[len(before) :]])
