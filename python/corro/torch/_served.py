"""`DistributedOptimizer(..., mode="ps")`: gradients that are averaged, or parameters that are updated, by parameter servers.

With `staleness=0` servers only sum: it is another way for gradients (`Served`), and everything else stays as it is. With a
bound, or none, servers own the parameters, and the optimizer runs there (`ServedOptimizer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from corro import ps
from corro._front import watching
from corro._front.engine_compression import Settings
from corro._front.process_sets import ProcessSet
from corro.ps._training import Owned, Servers, Sums, check, codes_of, rule_of
from corro.torch.optimizer import Names, _Twin

__all__ = ["Served", "ServedOptimizer", "check", "codes_of"]


class Served:
    """Servers add gradients up in the order of ranks: the bits of an allreduce on one host."""

    def __init__(
        self,
        names: Names,
        process_set: ProcessSet,
        numbers: tuple[int, float, float],
        servers: Servers,
        codes: Settings,
    ) -> None:
        self._sums = Sums(rule_of(numbers[0], numbers[2]), process_set, servers, codes)
        for p, name in names.items():
            if p.requires_grad:
                self._name(name, p)
        self._sums.open()

    @property
    def store(self) -> ps.Store:
        return self._sums.store

    def _name(self, name: str, p: torch.Tensor) -> None:
        # What the next forward pass needs first goes first.
        shape, dtype = p.shape, p.dtype
        self._sums.name(name, lambda: torch.zeros(shape, dtype=dtype))

    def start(self, name: str, p: torch.Tensor, grad: torch.Tensor) -> Callable[[], None]:
        if name not in self._sums:
            self._name(name, p)
        pulled = self._sums.start(name, grad)

        def finish() -> None:
            pulled.wait(grad)

        return finish

    def remembered(self) -> dict[str, torch.Tensor]:
        """Servers that sum remember nothing; what codes have left out is small, and begins anew."""
        return {}

    def remember(self, _states: dict[str, torch.Tensor]) -> None:
        """The same."""


class ServedOptimizer(_Twin):
    """What is put before the user's optimizer class: `step` pushes gradients, and pulls parameters that servers updated."""

    _named: Names
    _owned: Owned

    def _serve(
        self, names: Names, process_set: ProcessSet, staleness: int | None, servers: Servers, codes: Settings
    ) -> None:
        self._named = names

        def values() -> list[tuple[str, torch.Tensor]]:
            return [(name, p.detach()) for p, name in names.items() if p.requires_grad]

        self._owned = Owned(server_side(self), values, staleness, process_set, servers, codes)
        self._owned.open(self._read)

    @property
    def store(self) -> ps.Store:
        """The store of the parameters: `save` and `load` are its business, what the optimizer remembers is there too."""
        return self._owned.store

    @property
    def _parameter_names(self) -> Names:
        """Horovod's: programs reach for it."""
        return self._named

    def _read(self) -> None:
        pulled = [(p, self._owned.pull(name)) for p, name in self._named.items() if p.requires_grad]
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
        for p, name in self._named.items():
            if p.grad is not None:
                self._owned.push(name, p.grad.to_dense() if p.grad.is_sparse else p.grad, rates[p])
        self._owned.step()
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
                f"servers have one optimizer for all parameters: parameter groups may differ in lr only, not in {key}."
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
