"""How a worker's traceback is attached to its exception: as a note, since frames cannot travel."""

from __future__ import annotations

__all__ = ["IN_THE_WORKER"]

IN_THE_WORKER = "In the worker:"
