"""Horovod's second home of elastic jobs on Ray, whose words are those of `RayExecutor`."""

from __future__ import annotations

from corro.ray import elastic

__all__ = ["RayHostDiscovery"]


class RayHostDiscovery(elastic.RayHostDiscovery):
    """As in `corro.ray.elastic`, with other names.

    Example:
        >>> from corro.ray.elastic_v2 import RayHostDiscovery
        >>> discovery = RayHostDiscovery(cpus_per_worker=2)
    """

    def __init__(self, use_gpu: bool = False, cpus_per_worker: float = 1, gpus_per_worker: float = 1) -> None:
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker)
