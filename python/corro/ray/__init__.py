"""Jobs on Ray: `RayExecutor` runs functions as ranks in actors that Ray places.

`ElasticRayExecutor` goes on when some of them are lost, and `corro.ray.train` has a backend for Ray Train.
"""

from __future__ import annotations

from corro.ray.elastic import ElasticRayExecutor
from corro.ray.runner import RayExecutor
from corro.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
