"""`compression="auto"`: measures what each way costs on the links there are, and takes the fastest.

When the first tensor of an epoch comes, all ranks together run allreduces of two sizes, plain and compressed. What
counts is the slowest rank's best time, so that all decide alike. A line through the two sizes then says what a tensor
of any size costs.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corro import _native
from corro._environment import flag
from corro._front import basics
from corro._front.adapter import CPU
from corro._front.arguments import Max, Sum

if TYPE_CHECKING:
    from corro._front.engine_compression import EngineCompression

# Bytes: one that is mostly latency, and one that is mostly bandwidth and still takes less than half a second at 100 Mbit/s.
SMALL, LARGE = 64 << 10, 4 << 20
ROUNDS = 4
# Compression must be faster by this factor: what is not worth much is not worth any rounding.
WORTH = 1.05
FLOAT32, FLOAT64 = 7, 8


@dataclass(frozen=True)
class Cost:
    """Seconds of an allreduce of the two sizes."""

    small: float
    large: float

    def of(self, nbytes: int) -> float:
        """Of any size; never less than that of the small one."""
        slope = max(0.0, self.large - self.small) / (LARGE - SMALL)
        return self.small + slope * max(0, nbytes - SMALL)


def choose(costs: dict[str, Cost], nbytes: int) -> str:
    """The fastest way for a tensor; the plain one, "none", unless another is worth it."""
    best = min(costs, key=lambda way: costs[way].of(nbytes))
    return best if costs["none"].of(nbytes) > WORTH * costs[best].of(nbytes) else "none"


class Auto:
    """Decides for each tensor, by its size. Made by `Compression.auto()`."""

    def __init__(self, among: Sequence[EngineCompression]) -> None:
        if not among:
            raise ValueError("Compression.auto(among=...) needs at least one compression to choose from.")
        self.among = tuple(among)
        self._epoch: int | None = None
        self._costs: dict[str, Cost] = {}

    def setting(self, _name: str, nbytes: int) -> str | None:
        """How a tensor is compressed. The first time, and when ranks have changed, all ranks measure together."""
        if self._epoch != _native.epoch():
            self._costs = self._measure() if self._pays_at_all() else {}
            self._epoch = _native.epoch()
            if basics.rank() == 0:
                print(f"corro: {self}", file=sys.stderr)
        if not self._costs:
            return None
        way = choose(self._costs, nbytes)
        return None if way == "none" else way

    def _pays_at_all(self) -> bool:
        inside = flag("COMPRESS_INSIDE") or any("inside=yes" in one.spec for one in self.among)
        return basics.size() > 1 and (inside or basics.cross_size() > 1)

    def _measure(self) -> dict[str, Cost]:
        # Without feedback: what it costs is a pass over memory, and these tensors leave nothing behind.
        ways: dict[str, str | None] = {
            "none": None,
            **{one.spec: one.spec.replace("feedback=yes", "feedback=no") for one in self.among},
        }
        seconds = [_seconds(nbytes, spec) for spec in ways.values() for nbytes in (SMALL, LARGE)]
        slowest = _slowest(seconds)
        return {way: Cost(*slowest[2 * i : 2 * i + 2]) for i, way in enumerate(ways)}

    def __str__(self) -> str:
        if not self._costs:
            return 'compression="auto": none, since all ranks are on one host, where bytes cost next to nothing.'
        plain = self._costs["none"]
        found = choose(self._costs, LARGE)
        times = ", ".join(f"{way} {cost.of(LARGE) * 1e3:.3g} ms" for way, cost in self._costs.items())
        rate = LARGE / plain.of(LARGE) / 1e6
        return f'compression="auto": {found}. {LARGE >> 20} MiB take: {times} (plain: {rate:.4g} MB/s).'


def _seconds(nbytes: int, spec: str | None) -> float:
    """The best time of a few."""
    memory = (ctypes.c_float * (nbytes // 4))()
    view = (ctypes.addressof(memory), (nbytes // 4,), FLOAT32, CPU)
    best = float("inf")
    for _ in range(ROUNDS):
        _native.barrier(0)
        began = time.perf_counter()
        _native.run("allreduce", view, view, 0, f"corro.auto.{nbytes}.{spec}", Sum, compression=spec)
        best = min(best, time.perf_counter() - began)
    return best


def _slowest(seconds: list[float]) -> list[float]:
    array = (ctypes.c_double * len(seconds))(*seconds)
    view = (ctypes.addressof(array), (len(seconds),), FLOAT64, CPU)
    _native.run("allreduce", view, view, 0, "corro.auto.slowest", Max)
    return list(array)
