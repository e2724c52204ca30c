"""Jobs on Ray: `RayExecutor` runs functions as ranks in actors that Ray places.

`ElasticRayExecutor` goes on when some of them are lost, and `corro.ray.train` has a backend for Ray Train.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corro.ray.elastic import ElasticRayExecutor
    from corro.ray.runner import RayExecutor
    from corro.ray.worker import BaseHorovodWorker
else:

    def __getattr__(name: str) -> Any:
        """Ranks of elastic jobs need `ray_logger` from here, and not Ray itself, which takes seconds to import."""
        if name not in _MODULES:
            raise AttributeError(f"module 'corro.ray' has no attribute {name!r}")
        return getattr(import_module(f"corro.ray.{_MODULES[name]}"), name)


__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]

_MODULES = {"BaseHorovodWorker": "worker", "ElasticRayExecutor": "elastic", "RayExecutor": "runner"}
