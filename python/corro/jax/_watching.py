"""Whether the ranks train one model together, in JAX: what `corro._front.checks` compares, and where.

A round is one call of an optimizer's `update`. Where that is done at once, the round's number says whether it is looked at.
In a compiled step nothing is, unless `CORRO_CHECKS=2` asks for it: to be told of a difference, a program must call Python
back, and with that each of its calls takes JAX's slow path (100 us and more, on GPUs the wait for the stream as well).

A compiled step does not wait for the answer: a thread of our own does, and a later step fails. The one that calls Python may
be in the engine's thread, which the other ranks need for the collective that they are in.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from corro._errors import HorovodInternalError
from corro._front import basics, checks
from corro._front.process_sets import ProcessSet
from corro.jax._trees import is_array, is_key
from corro.jax._versions import trace_state_clean
from corro.runner.util.threads import in_thread

Keys = Sequence[tuple[str, str]]


class TrainingWatch:
    """Looks after what one distributed optimizer trains."""

    def __init__(self, process_set: ProcessSet, name: str) -> None:
        self._process_set = process_set
        self._watch = checks.Watch(process_set, name)
        # Compiled steps, in the order in which they are compared, and how many there were.
        self._pending: deque[tuple[int, checks.Facts]] = deque()
        self._counted = 0
        self._is_comparing = False
        self._mistake: checks.TrainingMistake | None = None
        self._lock = Lock()
        _all.add(self)

    def look(self, params: Any, state: Any, reduced: Any) -> None:
        """Counts a round, after `reduced` has been; compares what the ranks have if the round is one to look at."""
        if not basics.is_initialized() or not self._process_set.included():
            return
        if trace_state_clean():
            if self._watch.next_round():
                keys, samples = _samples(params, state, self._watch.rounds)
                self._watch.compare(_facts(keys, samples, self._watch.rounds))
        elif checks.level() > 1 and self._watch.wanted:
            keys, samples = _samples(params, state, 0)
            # After the collectives of this reduction.
            done = [jnp.ravel(leaf)[:1] for leaf in jax.tree_util.tree_leaves(reduced) if _is_float(leaf)]

            def in_python(samples: Any, _done: Any) -> None:
                self._compare_later(keys, samples)

            io_callback(in_python, None, *jax.lax.stop_gradient((samples, done)), ordered=False)

    def _compare_later(self, keys: Keys, samples: Any) -> None:
        with self._lock:
            if self._mistake is not None:
                raise self._mistake
            self._counted += 1
            self._pending.append((self._counted, _facts(keys, samples, self._counted)))
            if self._is_comparing:
                return
            self._is_comparing = True
        in_thread(self._compare_pending, name="corro-checks")

    def _compare_pending(self) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    self._is_comparing = False
                    return
                self._watch.rounds, facts = self._pending.popleft()
            # The job may be over, or a rank lost: the training hears of that itself.
            with suppress(HorovodInternalError):
                try:
                    self._watch.compare(facts)
                except checks.TrainingMistake as mistake:
                    self._mistake = mistake

    def begin_anew(self) -> None:
        self._watch.begin_anew()
        with self._lock:
            self._counted = 0
            self._pending.clear()


_all: weakref.WeakSet[TrainingWatch] = weakref.WeakSet()


def _begin_anew() -> None:
    """The ranks may be others when the job goes on."""
    for watch in _all:
        watch.begin_anew()


basics.after_shutdown(_begin_anew)


def _samples(params: Any, state: Any, round_number: int) -> tuple[Keys, list[Any]]:
    """What is compared, and the arrays that tell it: rates and steps where the state has them, and parameters."""
    keys: list[tuple[str, str]] = []
    samples: list[Any] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path)
        # `optax.inject_hyperparams` keeps rates as numbers of the state; elsewhere they are constants of the program.
        kind = checks.RATE if name.endswith("['learning_rate']") else checks.STEPS if name.endswith(".count") else None
        if kind is not None and is_array(leaf) and not leaf.shape:
            keys.append((kind, f"at {name}"))
            samples.append(leaf)
    named = [(path, leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0] if _is_float(leaf)]
    for path, leaf in checks.in_turn(named, round_number):
        keys.append((checks.PARAMETER, jax.tree_util.keystr(path)))
        samples.append(_elements(leaf, round_number))
    return keys, samples


def _elements(leaf: Any, round_number: int) -> Any:
    where = checks.positions(leaf.size, round_number)
    if isinstance(leaf, jax.core.Tracer):
        return jnp.ravel(leaf)[np.array(where, np.int32)]
    if isinstance(leaf, np.ndarray) or (leaf.is_fully_addressable and leaf.sharding.device_set == _first_on_host()):
        # It lies here, and is not copied. JAX would compile a program for each shape.
        return np.asarray(leaf).reshape(-1)[where.start : where.stop : where.step] if len(where) else np.zeros(0)
    return jnp.take(jnp.ravel(leaf), np.array(where, np.int32))


@functools.cache
def _first_on_host() -> set[Any]:
    return {jax.local_devices(backend="cpu")[0]}


def _facts(keys: Keys, samples: Sequence[Any], round_number: int) -> checks.Facts:
    """Parameters are looked at from the second round on: some programs broadcast them after a first step."""
    pairs = zip(keys, samples, strict=True)
    exact = {checks.PARAMETER: np.float64}
    return {
        key: np.asarray(sample, exact.get(key[0])).tolist()
        for key, sample in pairs
        if round_number > 1 or key[0] != checks.PARAMETER
    }


def _is_float(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and not is_key(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
