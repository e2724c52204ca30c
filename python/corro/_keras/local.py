"""Local SGD, DiLoCo and gossip as callbacks: Keras takes the steps, and after each of them they may change the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from corro._front.local import averaging, diloco, gossip
from corro._front.local.hosts import host_set
from corro._keras.callbacks import bring_variables
from corro._keras.values import as_array, broadcast_variables

if TYPE_CHECKING:
    from corro._front.local.outer import Nesterov
    from corro._front.local.parameters import Vector
    from corro._front.process_sets import ProcessSet


class Variables:
    """See `corro._front.local.parameters.Parameters`."""

    def __init__(self, keras: Any, variables: list[Any]) -> None:
        self._keras, self._all = keras, variables

    def sizes(self) -> list[int]:
        return [int(np.prod(v.shape)) for v in self._all]

    def read(self, which: range) -> Vector:
        return np.concatenate([as_array(self._keras, self._all[i]).astype(np.float32).reshape(-1) for i in which])

    def write(self, which: range, values: Vector) -> None:
        at = 0
        for i, size in ((i, int(np.prod(self._all[i].shape))) for i in which):
            self._all[i].assign(values[at : at + size].reshape(tuple(self._all[i].shape)))
            at += size


class Training:
    """After the first batch all ranks take the weights of rank 0, and count from there; at the end they are made alike."""

    _keras: Any
    model: Any
    _core: Any = None

    def _begin(self, variables: Variables) -> Any:
        raise NotImplementedError

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        bring_variables(self.model)
        if self._core is not None:
            self._core.step()
            return
        trainable = list(self.model.trainable_variables)
        broadcast_variables(self._keras, trainable, 0, f"{type(self).__name__}.begin")
        self._core = self._begin(Variables(self._keras, trainable))

    def on_train_end(self, logs: Any = None) -> None:
        if self._core is not None:
            self._core.settle()


class LocalSGD(Training):
    """Ranks take their own steps, and average their weights every `every` batches: so many times fewer bytes.

    In the first `start` batches they average after each (post-local SGD). With `hierarchy="host"` (or a process set)
    ranks of a host average after each batch, too. Compile the model with an optimizer that is not distributed.

    Example:
        >>> callbacks = [hvd.callbacks.LocalSGDCallback(every=8)]
    """

    def __init__(self, every: int, start: int = 0, hierarchy: str | ProcessSet | None = None) -> None:
        super().__init__()
        self._how = (every, start, hierarchy)

    def _begin(self, variables: Variables) -> Any:
        every, start, hierarchy = self._how
        return averaging.Averaging(variables, every, start, host_set(hierarchy))


class DiLoCo(Training):
    """Ranks train alone. Every `every` batches an outer optimizer uses the mean of their changes as a gradient.

    `outer` is `hvd.callbacks.Nesterov(lr, momentum)`. Streaming DiLoCo: `fragments` cuts the weights into so many
    parts, which are sent one after the other; `delay` says for how many batches training goes on while a part is on its
    way; `alpha` is the share of its own values that a rank keeps when the part comes back. `compression` is written as
    "int8" or "int4 block=64". Compile the model with an optimizer that is not distributed.

    Example:
        >>> callbacks = [hvd.callbacks.DiLoCoCallback(every=100, fragments=4, compression="int8")]
    """

    def __init__(
        self,
        outer: Nesterov | None = None,
        every: int = 100,
        fragments: int = 1,
        delay: int = 0,
        alpha: float = 0.0,
        compression: str | None = None,
    ) -> None:
        super().__init__()
        self._how = (outer, every, fragments, delay, alpha, compression)

    def _begin(self, variables: Variables) -> Any:
        return diloco.DiLoCo(variables, *self._how)


class Gossip(Training):
    """After each batch, a rank sends half of what it has to one other rank, and to no one else (push-sum).

    `graph` says to whom: "exponential" (distances 1, 2, 4, ... in turn), "ring", or "random", by `seed`.

    Example:
        >>> callbacks = [hvd.callbacks.GossipCallback()]
    """

    def __init__(self, graph: str = "exponential", seed: int = 0) -> None:
        super().__init__()
        self._how = (graph, seed)

    def _begin(self, variables: Variables) -> Any:
        return gossip.Gossip(variables, *self._how)
