"""Jobs on Ray: `RayExecutor` runs functions as ranks in actors that Ray places."""

from __future__ import annotations

from corro.ray.runner import RayExecutor
from corro.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "RayExecutor"]
