"""Training that survives a change of the ranks: `hvd.elastic.run`, `TorchState`, `ElasticSampler`."""

from __future__ import annotations

from collections.abc import Callable

from corro._front.elastic import P, R, restart, run_fn
from corro.torch.elastic.sampler import ElasticSampler
from corro.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[P, R]) -> Callable[P, R]:
    """Decorates `func(state, ...)`: it is started again, from the last commit, when ranks are lost or added.

    The state goes first. Raises what `func` raises, but for lost ranks and changed hosts.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     while state.epoch < 3:
        ...         state.epoch += 1
        ...         state.commit()
        ...     return state.epoch
        >>> train(hvd.elastic.TorchState(epoch=0))
        3
    """
    return run_fn(func, restart)
