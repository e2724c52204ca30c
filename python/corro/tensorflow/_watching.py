"""Whether the ranks train one model together, in TensorFlow: what `corro._front.checks` compares, eagerly and in graphs.

A round is one reduction of a list of gradients: reductions are what all ranks have in common. In a graph the count of rounds
is a variable, and what a round costs is a comparison of two numbers; only in rounds that are looked at does a branch read a
few elements of each parameter and call Python. A graph never waits for the answer: a thread of our own does. Ranks run the
nodes of a graph in orders of their own, so a node that waited for another rank's could keep that one from being run.

Parameters are looked at from the second round on: many programs broadcast them after their first step, when the optimizer
has its variables too.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import tensorflow as tf

from corro._errors import HorovodInternalError
from corro._front import basics, checks
from corro._front.process_sets import ProcessSet
from corro.runner.util.threads import in_thread
from corro.tensorflow import _xla
from corro.tensorflow.util import as_it_is, is_keras_variable

# A few elements of each parameter, and what the optimizer tells of itself.
Samples = dict[tuple[str, str], Any]
# What an optimizer tells of itself, as numbers, tensors or variables: asked for where it is looked at.
Numbers = Callable[[], Mapping[tuple[str, str], Any]]


class TrainingWatch:
    """Looks after the parameters that are trained together."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._watch = checks.Watch(process_set)
        self._rounds: Any = None
        # Rounds of a graph, in the order in which they are compared.
        self._pending: deque[tuple[int, Samples]] = deque()
        self._is_comparing = False
        self._lock = threading.Lock()
        _all.add(self)

    @as_it_is
    def look(self, reduced: Sequence[Any], variables: Sequence[Any], numbers: Numbers = dict) -> None:
        """Counts a round, after `reduced` has been, and compares what the ranks have if the round is one to look at."""
        if not self._watch.wanted or _xla.compiling() or not tf.compat.v1.executing_eagerly_outside_functions():
            # Compiled programs call no Python, and graphs of TensorFlow 1 would have to initialise the count.
            return
        # Now, while the program is read from top to bottom; nodes of a graph run in an order of each rank's own.
        _ = self._watch.name
        names = [_name_of(i, variable) for i, variable in enumerate(variables)]
        if tf.executing_eagerly():
            if self._watch.next_round():
                keys, samples = _all_samples(names, variables, numbers)
                self._compare(self._watch.rounds, _named(keys, samples))
        else:
            self._look_in_graph(reduced, variables, names, numbers)

    def _look_in_graph(
        self, reduced: Sequence[Any], variables: Sequence[Any], names: list[str], numbers: Numbers
    ) -> None:
        with tf.init_scope():
            if self._rounds is None:
                self._rounds = tf.Variable(self._watch.rounds, trainable=False, dtype=tf.int64, name="corro_rounds")
        with tf.control_dependencies([_dense(gradient) for gradient in reduced]):
            number = self._rounds.assign_add(1)

        def compare() -> Any:
            keys, samples = _all_samples(names, variables, numbers)

            def in_python(number: Any, *samples: Any) -> None:
                self._compare_later(int(number), _named(keys, samples))

            called = tf.py_function(in_python, [number, *samples], [])
            with tf.control_dependencies([called]):
                return tf.constant(True)

        tf.cond(_is_due(number, checks.level()), compare, lambda: tf.constant(False))

    def _compare(self, number: int, samples: Samples) -> None:
        self._watch.rounds = number
        if number > 1:
            self._watch.compare(samples)

    def _compare_later(self, number: int, samples: Samples) -> None:
        if checks.level() > 1:
            # Who asks for all checks wants the step to fail, on all ranks alike.
            self._compare(number, samples)
            return
        with self._lock:
            self._pending.append((number, samples))
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
                number, samples = self._pending.popleft()
            # The job may be over, or a rank lost: the training hears of that itself.
            with suppress(HorovodInternalError):
                self._compare(number, samples)

    def begin_anew(self) -> None:
        self._watch.begin_anew()
        # Ranks that stay go on counting together; new ones begin with nothing.
        if self._rounds is not None and basics.elastic_enabled():
            self._rounds.assign(0)


_all: weakref.WeakSet[TrainingWatch] = weakref.WeakSet()


def _begin_anew() -> None:
    """The ranks may be others when the job goes on."""
    for watch in _all:
        watch.begin_anew()


basics.after_shutdown(_begin_anew)


# A tape is made anew for every step; what it trains stays.
_of_variables: dict[tuple[Any, ...], TrainingWatch] = {}


def watch_over(variables: Sequence[Any], process_set: ProcessSet) -> TrainingWatch:
    """The one that looks after these variables, as long as the first of them lives."""
    key = (process_set.process_set_id, *map(id, variables))
    watch = _of_variables.get(key)
    if watch is None:
        watch = _of_variables[key] = TrainingWatch(process_set)
        weakref.finalize(variables[0], _of_variables.pop, key, None)
    return watch


def _is_due(number: Any, level: int) -> Any:
    """As `checks.is_due`, in a graph."""
    if level > 1:
        return tf.constant(True)
    early = tf.logical_and(number < checks.EVERY, tf.equal(tf.bitwise.bitwise_and(number, number - 1), 0))
    return tf.logical_or(tf.equal(number % checks.EVERY, 0), early)


def _sample(variable: Any) -> Any:
    """A few elements of a parameter, spread over it."""
    flat = tf.reshape(_tensor(variable), [-1])
    positions = list(checks.positions(int(flat.shape[0] or 0)))
    return tf.cast(tf.gather(flat, tf.constant(positions, tf.int32)), tf.float64)


def _tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value.value if is_keras_variable(value) else value)


def _dense(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _name_of(position: int, variable: Any) -> str:
    """The same on all ranks: what a variable is called in full tells what else a rank has made before."""
    own_name = str(getattr(variable, "name", "")).rsplit("/", 1)[-1].split(":")[0]
    return f"{own_name.rstrip('_0123456789')} (number {position + 1})"


def _all_samples(
    names: Sequence[str], variables: Sequence[Any], numbers: Numbers
) -> tuple[list[tuple[str, str]], list[Any]]:
    """What is compared, and the tensors that tell it."""
    told = numbers()
    keys = [*told, *((checks.PARAMETER, name) for name in names)]
    return keys, [*map(_number, told.values()), *map(_sample, variables)]


def _number(value: Any) -> Any:
    # As exactly as it is given: 0.1 is no number of 32 bits.
    exact = tf.constant(value, tf.float64) if isinstance(value, (int, float)) else _tensor(value)
    return tf.reshape(tf.cast(exact, tf.float64), [])


def _named(keys: Sequence[tuple[str, str]], samples: Sequence[Any]) -> Samples:
    values = [sample.numpy().tolist() for sample in samples]
    return {k: int(value) if k[0] == checks.STEPS else value for k, value in zip(keys, values, strict=True)}
