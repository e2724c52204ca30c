"""Whether the ranks train one model together: `fit` with a distributed optimizer has them compare it now and then.

At the ends of some batches, by the same numbers on all ranks, they compare the learning rate, the number of steps and a few
elements of a few weights (`corro._front.checks`). That is outside of the compiled step, so it works on every backend and
compiles nothing anew; batches between those cost one comparison of numbers.

Weights are looked at from the second batch on: `BroadcastGlobalVariablesCallback` sends them after the first.
"""

from __future__ import annotations

from typing import Any

from corro._front import checks
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
                facts[checks.PARAMETER, name] = self._sample(variable)
        return facts

    def _sample(self, variable: Any) -> list[float]:
        ops = self._keras.ops
        flat = ops.reshape(ops.convert_to_tensor(variable), (-1,))
        chosen = list(checks.positions(int(flat.shape[0]), self._watch.rounds))
        return [float(value) for value in as_array(self._keras, ops.take(flat, chosen))] if chosen else []


def callback_for(keras: Any, optimizer: Any) -> Any:
    """The callback that watches a training with this distributed optimizer."""
    kind = type("TrainingWatch", (TrainingWatch, keras.callbacks.Callback), {"_keras": keras})
    return kind(optimizer)
