"""`DistributedOptimizer(..., mode="ps")`: gradients that are averaged, or parameters that are updated, by parameter servers.

With `staleness=0` servers only sum: it is another way for gradients (`Served`), and everything else stays as it is. With a
bound, or none, servers own the parameters, and the optimizer runs there (`ServedOptimizer`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from corro import ps
from corro._front import basics, watching
from corro._front.arguments import Average, Sum, set_size
from corro._front.process_sets import ProcessSet
from corro.torch.optimizer import Names, _Twin

Servers = Literal["colocated", "spare", "mixed"] | None


class Served:
    """Servers add gradients up in the order of ranks: the bits of an allreduce on one host."""

    def __init__(
        self, names: Names, process_set: ProcessSet, numbers: tuple[int, float, float], servers: Servers
    ) -> None:
        op, *factors = numbers
        if op not in (Average, Sum) or factors != [1.0, 1.0]:
            raise ValueError('mode="ps" works with op=hvd.Average and hvd.Sum, without gradient_predivide_factor.')
        self._rule: ps.Rule = "average" if op == Average else "sum"
        self.store = ps.Store(process_set, ps.BSP(), servers)
        # What the next forward pass needs first goes first.
        self._priorities: dict[str, int] = {}
        for p, name in names.items():
            if p.requires_grad:
                self._name(name, p)

    def _name(self, name: str, p: torch.Tensor) -> None:
        self._priorities[name] = len(self._priorities)
        self.store.init(name, torch.zeros_like(p, device="cpu", memory_format=torch.contiguous_format), rule=self._rule)

    def start(self, name: str, p: torch.Tensor, grad: torch.Tensor) -> Callable[[], None]:
        if name not in self._priorities:
            self._name(name, p)
        priority = self._priorities[name]
        self.store.push(name, grad, priority)
        pulled = self.store.pull_async(name, priority)

        def finish() -> None:
            pulled.wait(grad)

        return finish

    def remembered(self) -> dict[str, torch.Tensor]:
        """Servers that sum remember nothing."""
        return {}

    def remember(self, _states: dict[str, torch.Tensor]) -> None:
        """The same."""


class ServedOptimizer(_Twin):
    """What is put before the user's optimizer class: `step` pushes gradients, and pulls parameters that servers updated."""

    _named: Names
    _scale: float
    # The store of the parameters: `save` and `load` are its business, what the optimizer remembers is there too.
    store: ps.Store

    def _serve(self, names: Names, process_set: ProcessSet, staleness: int | None, servers: Servers) -> None:
        optimizer = server_side(self)
        if staleness is None and momentum_of(optimizer) > 0:
            warnings.warn(
                "asynchronous updates act like momentum of their own, and this optimizer's comes on top of it: training may "
                "diverge. Lower the momentum, or bound the staleness.",
                stacklevel=3,
            )
        self._named = names
        # Every worker pushes a gradient of its own: together they go as far as one average. Without a bound, the servers'
        # scaling by staleness does the same.
        self._scale = 1.0 if staleness is None else 1.0 / set_size(process_set)
        consistency = ps.Async(staleness_lr=True) if staleness is None else ps.SSP(staleness)
        self.store = ps.Store(process_set, consistency, servers)
        self.store.set_optimizer(optimizer)
        for p, name in names.items():
            if p.requires_grad:
                self.store.init(name, p, rule="update")
        self._read()

    @property
    def _parameter_names(self) -> Names:
        """Horovod's: programs reach for it."""
        return self._named

    def _read(self) -> None:
        trained = [(p, name) for p, name in self._named.items() if p.requires_grad]
        pulled = [(p, self.store.pull_async(name, at)) for at, (p, name) in enumerate(trained)]
        with torch.no_grad():
            for p, value in pulled:
                value.wait(p.data)

    def synchronize(self) -> None:
        """Has no effect: it is the parameters that ranks share, in `step`."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Has no effect: see `synchronize`."""
        yield

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Has no effect: gradients add up until `step`."""
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Has no effect: gradients add up until `step`."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rates = {p: float(group["lr"]) for group in self.param_groups for p in group["params"]}
        for at, (p, name) in enumerate(self._named.items()):
            if p.grad is not None:
                self.store.push(name, p.grad.to_dense() if p.grad.is_sparse else p.grad, at, rates[p] * self._scale)
        self.store.clock()
        self._read()
        watching.mark_step()
        return loss


# What servers have, and what they can't do of it.
_REFUSED = {"dampening": 0, "amsgrad": False, "maximize": False, "lr_decay": 0}


def server_side(optimizer: torch.optim.Optimizer) -> ps.Optimizer:
    """The same optimizer for servers, if they have it."""
    # What `_subclass` made has the user's class behind the mixin. Exactly these: a subclass may do something else.
    kind: type = type(optimizer)
    if issubclass(kind, _Twin):
        kind = kind.__bases__[1]
    groups = [
        {key: value for key, value in group.items() if key not in ("params", "initial_lr")}
        for group in optimizer.param_groups
    ]
    first = groups[0]
    for key in first:
        if key != "lr" and any(group.get(key) != first[key] for group in groups):
            raise ValueError(
                f"servers have one optimizer for all parameters: groups may differ in lr, and not in {key}."
            )
    refused = [key for key, value in _REFUSED.items() if first.get(key, value) != value]
    if refused:
        raise ValueError(f"servers can't do {', '.join(refused)}: keep the optimizer on the ranks, with staleness=0.")
    numbers = {key: float(first[key]) for key in ("lr", "weight_decay") if key in first}
    if kind is torch.optim.SGD:
        return ps.SGD(momentum=float(first["momentum"]), nesterov=bool(first["nesterov"]), **numbers)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        beta1, beta2 = map(float, first["betas"])
        decoupled = kind is torch.optim.AdamW or first.get("decoupled_weight_decay", False)
        return (ps.AdamW if decoupled else ps.Adam)(beta1=beta1, beta2=beta2, eps=float(first["eps"]), **numbers)
    if kind is torch.optim.Adagrad:
        # torch has it in the state from the start, and not among the numbers of the group in older versions.
        initial = float(first.get("initial_accumulator_value", 0.0))
        return ps.Adagrad(eps=float(first["eps"]), initial_accumulator_value=initial, **numbers)
    raise ValueError(
        f"servers have SGD, Adam, AdamW and Adagrad, and no {type(optimizer).__name__}: keep the optimizer on the ranks, "
        "with staleness=0."
    )


def momentum_of(optimizer: ps.Optimizer) -> float:
    """How much of a direction it remembers."""
    return float(getattr(optimizer, "momentum", getattr(optimizer, "beta1", 0.0)))


def check(mode: str, staleness: int | None, compression: Any, none: Any) -> None:
    """Raises if these can't go together."""
    if mode not in ("allreduce", "ps"):
        raise ValueError(f'mode is "allreduce" or "ps", not {mode!r}.')
    if staleness is not None and (staleness < 0 or math.isnan(staleness)):
        raise ValueError("staleness is how many steps a rank may be ahead of the slowest; None: any number.")
    if compression is not none:
        raise ValueError('mode="ps" does not compress yet: use compression=hvd.Compression.none.')
    if basics.elastic_enabled():
        raise ValueError('mode="ps" does not work in elastic jobs yet.')
