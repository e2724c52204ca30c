"""`DistributedOptimizer(..., mode="ps")`: what parameter servers do in the place of a reducer of gradients.

Servers are asked by Python: inside a compiled step the backend calls back (`backend.outside`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from corro import ps
from corro._front.arguments import Average, set_size
from corro._front.compression import NoneCompressor
from corro._front.process_sets import ProcessSet
from corro._keras.gradients import Reducer, common_name, same_variable
from corro.ps._training import Owned, Servers, Sums, codes_of


class ReducerOfSums(Reducer):
    """Servers average gradients in rounds (`staleness=0`)."""

    def __init__(
        self,
        backend: Any,
        name: str,
        rule: ps.Rule,
        compression: Any,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        scale_local_gradients: bool,
        servers: Servers,
    ) -> None:
        super().__init__(
            backend, name, Average, NoneCompressor, sparse_as_dense, 1.0, None, process_set, scale_local_gradients
        )
        self._sums = Sums(rule, process_set, servers, codes_of(compression, backend.Compression.none))

    def jit_problem(self) -> str:
        return self.backend.outside_problem()  # type: ignore[no-any-return]

    def _together(self, gradients: list[Any], shared: list[int], variables: Sequence[Any]) -> None:
        names = [f"{self.name}.{common_name(variables[i], i)}" for i in shared]

        def exchange(arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
            return self._sums.all(names, arrays)

        tensors = [gradients[i] for i in shared]
        for i, tensor in zip(shared, self.backend.outside(exchange, tensors, len(tensors)), strict=True):
            gradients[i] = tensor


class ReducerThatOwns(Reducer):
    """Servers own the parameters and run the optimizer (a bound for staleness, or none): gradients are not reduced here."""

    def __init__(
        self,
        backend: Any,
        name: str,
        optimizer: Any,
        compression: Any,
        staleness: int | None,
        process_set: ProcessSet,
        servers: Servers,
    ) -> None:
        super().__init__(backend, name, Average, NoneCompressor, True, 1.0, None, process_set, True)
        # The parameters as this rank has them: what a store begins with.
        self._latest: dict[str, Any] = {}
        codes = codes_of(compression, backend.Compression.none)
        self.owned = Owned(server_side(optimizer), self._values, staleness, process_set, servers, codes)

    def look(self, reduced: Sequence[Any], variables: Sequence[Any], numbers: Any) -> None:
        """Ranks may be some steps apart."""

    def _values(self) -> list[tuple[str, Any]]:
        return list(self._latest.items())

    def jit_problem(self) -> str:
        return self.backend.outside_problem()  # type: ignore[no-any-return]

    def _reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        dense = [g if g is None or not self.backend.is_sparse(g) else self.backend.densify(g) for g in gradients]
        local = self.local()
        factor = 1.0 / set_size(self.process_set)
        return [
            self.backend.scale(g, factor) if g is not None and same_variable(v) in local else g
            for g, v in zip(dense, variables, strict=True)
        ]

    def update(self, names: Sequence[str], gradients: Sequence[Any], values: Sequence[Any], rate: Any) -> list[Any]:
        """The parameters after a step of this rank's, as servers have them."""
        count = len(names)

        def exchange(arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
            pushed, current, rate = arrays[:count], arrays[count : 2 * count], float(arrays[-1])
            self._latest = dict(zip(names, current, strict=True))
            for name, gradient in zip(names, pushed, strict=True):
                self.owned.push(name, gradient, rate)
            self.owned.step()
            return [one.wait() for one in [self.owned.pull(name) for name in names]]

        return self.backend.outside(exchange, [*gradients, *values, rate], count)  # type: ignore[no-any-return]


def server_side(optimizer: Any) -> ps.Optimizer:
    """The same optimizer for servers, if they have it. The learning rate is told in every step."""
    kind = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("keras."):
        kind = f"{type(optimizer).__module__}.{kind}"
    decay = float(getattr(optimizer, "weight_decay", None) or 0.0)
    if getattr(optimizer, "amsgrad", False):
        raise ValueError("servers can't do amsgrad: keep the optimizer on the ranks, with staleness=0.")
    if kind in ("Adam", "AdamW"):
        betas = {"beta1": float(optimizer.beta_1), "beta2": float(optimizer.beta_2), "eps": float(optimizer.epsilon)}
        return ps.AdamW(weight_decay=decay, **betas) if decay else ps.Adam(**betas)
    if decay:
        raise ValueError(f"servers can't do weight_decay of {kind}: keep the optimizer on the ranks, with staleness=0.")
    if kind == "SGD":
        return ps.SGD(momentum=float(optimizer.momentum), nesterov=bool(optimizer.nesterov))
    if kind == "Adagrad":
        initial = float(optimizer.initial_accumulator_value)
        return ps.Adagrad(eps=float(optimizer.epsilon), initial_accumulator_value=initial)
    raise ValueError(
        f"servers have SGD, Adam, AdamW and Adagrad, and no {kind}: keep the optimizer on the ranks, with staleness=0."
    )
