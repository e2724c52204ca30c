"""Where workers go: bundles of resources, reserved together before the first worker is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

__all__ = ["Placement", "Shape"]


@dataclass(frozen=True)
class Shape:
    """What is asked for: so many workers, each with so much; on hosts of their own, or packed where there is room."""

    workers: int
    hosts: int | None
    cpus: float
    gpus: float

    @property
    def per_host(self) -> int:
        return self.workers // self.hosts if self.hosts else 1

    def bundles(self) -> list[dict[str, float]]:
        count, each = (self.hosts, self.per_host) if self.hosts else (self.workers, 1)
        bundle = {"CPU": self.cpus * each, **({"GPU": self.gpus * each} if self.gpus else {})}
        return [dict(bundle) for _ in range(count)]

    @property
    def strategy(self) -> str:
        return "STRICT_SPREAD" if self.hosts else "PACK"


class Placement:
    """A placement group: the one that the caller runs in, or one of our own that ends with `release`."""

    def __init__(self, shape: Shape, use_current: bool, seconds: float) -> None:
        self._shape = shape
        current = get_current_placement_group() if use_current else None
        self._ours = current is None
        self._group = current or _reserve(shape, seconds)

    @property
    def group(self) -> PlacementGroup:
        return self._group

    def options(self, worker: int) -> dict[str, Any]:
        """Ray's options for a worker's actor."""
        bundle = worker // self._shape.per_host if self._ours else -1
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=bundle, placement_group_capture_child_tasks=False
        )
        return {"num_cpus": self._shape.cpus, "num_gpus": self._shape.gpus, "scheduling_strategy": strategy}

    def release(self) -> None:
        if self._ours:
            remove_placement_group(self._group)


def _reserve(shape: Shape, seconds: float) -> PlacementGroup:
    bundles = shape.bundles()
    group = placement_group(bundles, strategy=shape.strategy)
    ready, _ = ray.wait([group.ready()], timeout=seconds)
    if ready:
        return group
    remove_placement_group(group)
    raise TimeoutError(
        f"Ray has not reserved {len(bundles)} bundles of {bundles[0]} ({shape.strategy}) within {seconds:g} s. The cluster "
        f"has {_in_words(ray.cluster_resources())}, of which {_in_words(ray.available_resources())} are free. Ask for fewer "
        f"workers or less for each, wait for others to end, or raise placement_group_timeout_s."
    )


def _in_words(resources: dict[str, float]) -> str:
    named = [f"{resources[name]:g} {name}s" for name in ("CPU", "GPU") if resources.get(name)]
    return " and ".join(named) or "no CPUs"
