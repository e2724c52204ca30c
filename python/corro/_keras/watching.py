"""Whether the ranks train one model together: `fit` with a distributed optimizer has them compare it now and then.

At the ends of some batches, by the same numbers on all ranks, they compare the learning rate, the number of steps and a few
elements of a few weights (`corro._front.checks`). That is outside of the compiled step, so it works on every backend and
compiles nothing anew; batches between those cost one comparison of numbers.

A program that calls `optimizer.apply` by itself has no such batches: there a round is one reduction of gradients. In
compiled steps of JAX and torch nothing is looked at; TensorFlow's front looks in its graphs as well.

Weights are looked at from the second batch on: `BroadcastGlobalVariablesCallback` sends them after the first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corro._front import basics, checks
from corro._front.process_sets import ProcessSet
from corro._keras.callbacks import bring_variables
from corro._keras.gradients import Reducer, same_variable
from corro._keras.values import as_array


class TrainingWatch:
    """What is put before Keras's class of callbacks."""

    _keras: Any
    model: Any

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._watch = checks.Watch(self._reducer.process_set)

    @property
    def _reducer(self) -> Reducer:
        return self._optimizer._reducer

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._reducer.alone or not self._watch.next_round():
            return
        bring_variables(self.model)
        self._watch.compare(self._facts())

    def _facts(self) -> dict[tuple[str, str], Any]:
        optimizer = self._optimizer
        facts: dict[tuple[str, str], Any] = {
            (checks.RATE, ""): float(as_array(self._keras, optimizer.learning_rate)),
            (checks.STEPS, ""): int(as_array(self._keras, optimizer._iterations)),
        }
        if self._watch.rounds > 1:
            local = self._reducer.local()
            shared = [v for v in self.model.trainable_variables if same_variable(v) not in local]
            for i, variable in checks.in_turn(list(enumerate(shared)), self._watch.rounds):
                # Not its path, which tells what else a rank has made before.
                name = f"{variable.name} (weight {i + 1} of the model)"
                facts[checks.PARAMETER, name] = _sample(self._keras, variable, self._watch.rounds)
        return facts


def _sample(keras: Any, variable: Any, round_number: int) -> list[float]:
    ops = keras.ops
    flat = ops.reshape(ops.convert_to_tensor(variable), (-1,))
    chosen = list(checks.positions(int(flat.shape[0]), round_number))
    return [float(value) for value in as_array(keras, ops.take(flat, chosen))] if chosen else []


def callback_for(keras: Any, optimizer: Any) -> Any:
    """The callback that watches a training with this distributed optimizer."""
    kind = type("TrainingWatch", (TrainingWatch, keras.callbacks.Callback), {"_keras": keras})
    return kind(optimizer)


_loops: weakref.WeakSet[LoopWatch] = weakref.WeakSet()


class LoopWatch:
    """Looks after a training that a program steps by itself, on backends whose tensors have values outside of traces."""

    def __init__(self, process_set: ProcessSet, name: str, has_values: Callable[[], bool]) -> None:
        self._watch = checks.Watch(process_set, name)
        self._has_values = has_values
        _loops.add(self)

    def look(
        self, reduced: Sequence[Any], variables: Sequence[Any], numbers: Callable[[], Mapping[tuple[str, str], Any]]
    ) -> None:
        """Counts a round, after `reduced` has been; compares what the ranks have if the round is one to look at."""
        if not self._has_values() or not self._watch.next_round():
            return
        import keras

        facts: dict[tuple[str, str], Any] = {key: as_array(keras, value).item() for key, value in numbers().items()}
        # From the second round on, as in `fit`.
        chosen = checks.in_turn(list(enumerate(variables)), self._watch.rounds) if self._watch.rounds > 1 else ()
        for i, variable in chosen:
            facts[checks.PARAMETER, f"{variable.name} (number {i + 1})"] = _sample(keras, variable, self._watch.rounds)
        self._watch.compare(facts)


def _begin_anew() -> None:
    """The ranks may be others when the job goes on."""
    for loop in _loops:
        loop._watch.begin_anew()


basics.after_shutdown(_begin_anew)
