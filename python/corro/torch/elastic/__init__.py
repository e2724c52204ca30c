"""Training that survives a change of the ranks: `hvd.elastic.run`, `TorchState`, `ElasticSampler`."""

from __future__ import annotations

from collections.abc import Callable

from corro._front.elastic import P, R, restart, run_fn
from corro.torch.elastic.sampler import ElasticSampler
from corro.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[P, R]) -> Callable[P, R]:
    """Decorates `func(state, ...)`: it is started again, from the last commit, when ranks are lost or added."""
    return run_fn(func, restart)
