"""Local SGD, DiLoCo and gossip for torch: what happens is in `corro._front.local`, here parameters are read and written."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from corro._front.local.outer import Nesterov
from corro._front.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from corro._front.engine_compression import EngineCompression
    from corro._front.local.elastic import LocalState
    from corro._front.local.parameters import Vector

__all__ = ["DiLoCo", "Gossip", "LocalSGD", "Nesterov"]

T = TypeVar("T", bound="_Training")


class _Parameters:
    """See `corro._front.local.parameters.Parameters`."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._all = [p for p in parameters if p.requires_grad]

    def sizes(self) -> list[int]:
        return [p.numel() for p in self._all]

    def read(self, which: range) -> Vector:
        flat = [self._all[i].detach().reshape(-1).float() for i in which]
        values: Vector = torch.cat(flat).cpu().numpy()
        return values

    def write(self, which: range, values: Vector) -> None:
        rest = torch.from_numpy(values)
        with torch.no_grad():
            for i in which:
                p = self._all[i]
                p.copy_(rest[: p.numel()].view_as(p))
                rest = rest[p.numel() :]


class _Training:
    """Follows the steps of an optimizer. Also a context: at its end all ranks are alike."""

    # What `corro._front.local` does.
    _core: Any

    def _follow(self, optimizer: torch.optim.Optimizer, core: Any) -> None:
        self._core = core
        self._hook = optimizer.register_step_post_hook(lambda *_: self._core.step())

    @property
    def steps(self) -> int:
        """Steps that were taken so far; the same on all ranks."""
        steps: int = self._core.steps
        return steps

    def settle(self) -> None:
        """Makes all ranks alike: before the model is saved or judged. All must call it, after the same steps."""
        self._core.settle()

    def remove(self) -> None:
        """Lets the optimizer go: from here on its steps are its own."""
        self._hook.remove()

    def abandon(self) -> None:
        """Forgets what is on the way."""
        self._core.abandon()

    def join_in(self, state: dict[str, Any]) -> None:
        """Takes what ranks have in common from there, and the parameters."""
        self._core.join_in(state)

    def state_dict(self) -> dict[str, Any]:
        """What ranks have in common, to be saved with the model."""
        state: dict[str, Any] = self._core.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there, with the parameters that the model has."""
        self._core.load_state_dict(state)

    def elastic_state(self) -> LocalState:
        """The state for `hvd.elastic.run`: a rank that is lost loses its own steps, and the others none."""
        from corro._front.local.elastic import LocalState

        return LocalState(self)

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _at: TracebackType | None
    ) -> None:
        if kind is None:
            self.settle()
        self.remove()


class LocalSGD(_Training):
    """Ranks take their own steps, and average their parameters every `every` steps: so many times fewer bytes.

    In the first `start` steps they average after each (post-local SGD). With `hierarchy="host"` (or a process set)
    ranks of a host average after each step, too; that takes `hvd.init(process_sets="dynamic")`. The optimizer is one
    without `DistributedOptimizer`, and keeps its momentum to itself.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> with hvd.LocalSGD(model, optimizer, every=4) as training:
        ...     for _ in range(8):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(1, 2)).sum().backward()
        ...         optimizer.step()
        >>> training.steps
        8
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        every: int,
        start: int = 0,
        hierarchy: str | ProcessSet | None = None,
        process_set: ProcessSet = global_process_set,
        name: str = "local_sgd",
    ) -> None:
        from corro._front.local.averaging import Averaging
        from corro._front.local.hosts import host_set

        parameters = _Parameters(model.parameters())
        self._follow(optimizer, Averaging(parameters, every, start, host_set(hierarchy), process_set, name))


class DiLoCo(_Training):
    """Ranks train alone. Every `every` steps an outer optimizer uses the mean of their changes as a gradient.

    `outer` is `hvd.Nesterov(lr, momentum)`. Streaming DiLoCo: `fragments` cuts the parameters into so many parts, which
    are sent one after the other; `delay` says for how many steps training goes on while a part is on its way; `alpha`
    is the share of its own values that a rank keeps when the part comes back. `compression` is one of the engine's,
    such as `hvd.Compression.int8()` or "int8". The optimizer is one without `DistributedOptimizer`, and keeps its
    moments to itself. All ranks must begin with the same parameters.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> with hvd.DiLoCo(model, optimizer, every=4, fragments=2) as training:
        ...     for _ in range(8):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(1, 2)).sum().backward()
        ...         optimizer.step()
        >>> training.steps
        8
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        outer: Nesterov | None = None,
        every: int = 100,
        fragments: int = 1,
        delay: int = 0,
        alpha: float = 0.0,
        compression: EngineCompression | str | None = None,
        process_set: ProcessSet = global_process_set,
        name: str = "diloco",
    ) -> None:
        from corro._front.local import diloco

        parameters = _Parameters(model.parameters())
        how = (outer, every, fragments, delay, alpha, compression, process_set, name)
        self._follow(optimizer, diloco.DiLoCo(parameters, *how))


class Gossip(_Training):
    """After each step, a rank sends half of what it has to one other rank, and to no one else (push-sum).

    `graph` says to whom: "exponential" (distances 1, 2, 4, ... in turn), "ring", or "random", by `seed`. The optimizer
    is one without `DistributedOptimizer`.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> with hvd.Gossip(model, optimizer) as training:
        ...     for _ in range(8):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(1, 2)).sum().backward()
        ...         optimizer.step()
        >>> training.steps
        8
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        graph: str = "exponential",
        seed: int = 0,
        process_set: ProcessSet = global_process_set,
        name: str = "gossip",
    ) -> None:
        from corro._front.local import gossip

        parameters = _Parameters(model.parameters())
        self._follow(optimizer, gossip.Gossip(parameters, graph, seed, process_set, name))
