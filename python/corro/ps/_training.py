"""Training by parameter servers, for all fronts: gradients go in by name, what servers made of them comes out.

`Sums` is for `staleness=0`: servers add gradients up in rounds, and the optimizer stays where it is. `Owned` is for a
bound, or none: servers own the parameters and run the optimizer. In an elastic job both make a new store when the
ranks have changed.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from corro import _native, ps
from corro._front import basics
from corro._front.arguments import Average, Sum, set_size
from corro._front.auto_compression import Auto
from corro._front.compression import CastCompressor
from corro._front.engine_compression import Settings, settings_of
from corro._front.process_sets import ProcessSet

Servers = Literal["colocated", "spare", "mixed"] | None


def check(mode: str, staleness: int | None) -> None:
    """Raises if there is no such way to train."""
    if mode not in ("allreduce", "ps"):
        raise ValueError(f'mode is "allreduce" or "ps", not {mode!r}.')
    if staleness is not None and (staleness < 0 or math.isnan(staleness)):
        raise ValueError(
            "staleness must be 0 or more (how many steps a rank may be ahead of the slowest), or None (any number)."
        )


def rule_of(op: int, gradient_predivide_factor: float = 1.0) -> ps.Rule:
    """What servers do with gradients."""
    if op not in (Average, Sum) or gradient_predivide_factor != 1.0:
        raise ValueError('mode="ps" works with op=hvd.Average and hvd.Sum, without gradient_predivide_factor.')
    return "average" if op == Average else "sum"


def codes_of(compression: Any, none: Any) -> Settings:
    """How the gradient of each name travels, as `Store.init` takes it."""
    if compression is None or compression is none:
        return lambda _name, _nbytes: None
    if isinstance(compression, type) and issubclass(compression, CastCompressor):
        spec = "bf16" if "bfloat16" in str(compression.target) else "fp16"
        return lambda _name, _nbytes: spec
    settings = settings_of(compression, none)
    if settings is None or isinstance(compression, Auto) or compression == "auto":
        raise ValueError(
            'mode="ps" takes compression=hvd.Compression.fp16, bf16 or int8(), or a dictionary of these by patterns of '
            "names."
        )
    return settings


class Sums:
    """Servers add gradients up in the order of ranks: the bits of an allreduce on one host.

    Gradients are named before they are sent, in the same order on every rank; what is named first goes first.
    """

    def __init__(self, rule: ps.Rule, process_set: ProcessSet, servers: Servers, codes: Settings) -> None:
        self._rule: ps.Rule = rule
        self._process_set, self._servers, self._codes = process_set, servers, codes
        # What makes an array like each, and how urgent it is.
        self._named: dict[str, tuple[Callable[[], Any], int]] = {}
        self._store: ps.Store | None = None
        self._epoch = -1

    def __contains__(self, name: str) -> bool:
        return name in self._named

    @property
    def store(self) -> ps.Store:
        """The store of this epoch. Whoever is the first to need it after a change of ranks makes it, as all others do."""
        if self._store is None or self._epoch != _native.epoch():
            self._epoch = _native.epoch()
            self._store = ps.Store(self._process_set, ps.BSP(), self._servers)
            for name in self._named:
                self._init(name)
        return self._store

    def open(self) -> None:
        """Makes the store now, unless the job is elastic: then a rank that has just come would wait for others who train."""
        if not basics.elastic_enabled():
            _ = self.store

    def name(self, name: str, like: Callable[[], Any]) -> None:
        """Names a gradient, of which `like` makes an empty one."""
        self._named[name] = (like, len(self._named))
        if self._store is not None and self._epoch == _native.epoch():
            self._init(name)

    def _init(self, name: str) -> None:
        assert self._store is not None
        value = self._named[name][0]()
        is_float = str(value.dtype).removeprefix("torch.") == "float32"
        code = self._codes(name, 4 * math.prod(value.shape)) if is_float else None
        self._store.init(name, value, rule=self._rule, compression=code)

    def start(self, name: str, gradient: Any) -> ps.Pulled:
        """Sends a gradient, and asks for the sum."""
        priority = self._named[name][1]
        self.store.push(name, gradient, priority)
        return self.store.pull_async(name, priority)

    def all(self, names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        """All at once, for fronts that have them at once; those that have no name yet get one."""
        for name, gradient in zip(names, gradients, strict=True):
            if name not in self:
                self.name(name, functools.partial(np.zeros, np.shape(gradient), gradient.dtype))
        pulled = [self.start(name, gradient) for name, gradient in zip(names, gradients, strict=True)]
        return [one.wait() for one in pulled]


class Owned:
    """Servers own the parameters. `values` gives the parameters by name as this rank has them, always in the same order."""

    def __init__(
        self,
        optimizer: ps.Optimizer,
        values: Callable[[], Iterable[tuple[str, Any]]],
        staleness: int | None,
        process_set: ProcessSet,
        servers: Servers,
        codes: Settings,
    ) -> None:
        if staleness is None and momentum_of(optimizer) > 0:
            warnings.warn(
                "asynchronous updates act like momentum, and the optimizer's own momentum is added to that: training "
                "may diverge. Lower the momentum, or bound the staleness.",
                stacklevel=4,
            )
        self._optimizer, self._values, self._staleness = optimizer, values, staleness
        self._process_set, self._servers, self._codes = process_set, servers, codes
        self._order: dict[str, int] = {}
        self._store: ps.Store | None = None
        self._epoch = -1
        self._scale = 1.0

    def open(self, read: Callable[[], None]) -> None:
        """Makes the store now, and has `read` read the parameters; not if the job is elastic, see `Sums.open`."""
        if not basics.elastic_enabled():
            _ = self.store
            read()

    @property
    def store(self) -> ps.Store:
        """The store of this epoch; after a change of ranks it begins with the parameters of the first of them."""
        if self._store is None or self._epoch != _native.epoch():
            values = list(self._values())
            if not values:
                raise ValueError(
                    "the servers get the parameters in the first step: take one step before you use the store."
                )
            self._epoch = _native.epoch()
            consistency = ps.Async(staleness_lr=True) if self._staleness is None else ps.SSP(self._staleness)
            # Every worker pushes a gradient of its own: together they go as far as one average. Without a bound, the
            # servers' scaling by staleness does the same.
            self._scale = 1.0 if self._staleness is None else 1.0 / set_size(self._process_set)
            self._store = ps.Store(self._process_set, consistency, self._servers)
            self._store.set_optimizer(self._optimizer)
            for name, value in values:
                self._order.setdefault(name, len(self._order))
                nbytes = 4 * math.prod(value.shape)
                self._store.init(name, value, rule="update", compression=self._codes(name, nbytes))
        return self._store

    def push(self, name: str, gradient: Any, rate: float | None) -> None:
        """Sends a gradient of a step; `rate` is the learning rate of its parameter."""
        lr = self._optimizer.lr if rate is None else rate
        store = self.store
        store.push(name, gradient, self._order[name], lr * self._scale)

    def step(self) -> None:
        """All gradients of the step were sent."""
        self.store.clock()

    def pull(self, name: str) -> ps.Pulled:
        """Asks for a parameter."""
        store = self.store
        return store.pull_async(name, self._order[name])


def momentum_of(optimizer: ps.Optimizer) -> float:
    """How much of a direction it remembers."""
    return float(getattr(optimizer, "momentum", getattr(optimizer, "beta1", 0.0)))
