"""Local SGD, DiLoCo and gossip for JAX: parameters go in and come out, as everything here does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from corro._front.local import averaging, diloco, gossip
from corro._front.local.hosts import host_set
from corro._front.local.outer import Nesterov
from corro._front.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from corro._front.engine_compression import EngineCompression
    from corro._front.local.elastic import LocalState
    from corro._front.local.parameters import Vector

__all__ = ["DiLoCo", "Gossip", "LocalSGD", "Nesterov"]


class _Parameters:
    """See `corro._front.local.parameters.Parameters`. Nothing leaves its device before it is read."""

    def __init__(self, tree: Any) -> None:
        self.leaves: list[Any] = jax.tree.leaves(tree)

    def sizes(self) -> list[int]:
        return [int(np.size(leaf)) for leaf in self.leaves]

    def read(self, which: range) -> Vector:
        return np.concatenate([np.asarray(self.leaves[i], dtype=np.float32).reshape(-1) for i in which])

    def write(self, which: range, values: Vector) -> None:
        at = 0
        for i in which:
            leaf = self.leaves[i]
            size = int(np.size(leaf))
            # A copy: JAX may keep the memory it is given.
            self.leaves[i] = jnp.array(values[at : at + size].reshape(np.shape(leaf)), dtype=leaf.dtype)
            at += size


class _Training:
    """Follows the steps of a training loop."""

    # What `corro._front.local` does.
    _core: Any
    _parameters: _Parameters

    @property
    def steps(self) -> int:
        """Steps that were taken so far; the same on all ranks."""
        steps: int = self._core.steps
        return steps

    def step(self, params: Any) -> Any:
        """Called after each step of the optimizer, with the parameters; gives those to go on with."""
        return self._through(params, self._core.step)

    def settle(self, params: Any) -> Any:
        """Makes all ranks alike: before parameters are saved or judged. All must call it, after the same steps."""
        return self._through(params, self._core.settle)

    def abandon(self) -> None:
        """Forgets what is on the way."""
        self._core.abandon()

    def join_in(self, state: dict[str, Any]) -> None:
        """Takes what ranks have in common from there, and the parameters."""
        self._core.join_in(state)

    def state_dict(self) -> dict[str, Any]:
        """What ranks have in common, to be saved with the parameters."""
        state: dict[str, Any] = self._core.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there, with the parameters that come next."""
        self._core.load_state_dict(state)

    def params(self, like: Any) -> Any:
        """The parameters that the last step gave, or a new rank has taken, as a tree like this one."""
        return jax.tree.unflatten(jax.tree.structure(like), self._parameters.leaves)

    def elastic_state(self) -> LocalState:
        """The state for `hvd.elastic.run`: a rank that is lost loses its own steps, and the others none."""
        from corro._front.local.elastic import LocalState

        return LocalState(self)

    def _through(self, params: Any, act: Any) -> Any:
        leaves, tree = jax.tree.flatten(params)
        self._parameters.leaves = leaves
        act()
        return jax.tree.unflatten(tree, self._parameters.leaves)


class LocalSGD(_Training):
    """Ranks take their own steps, and average their parameters every `every` steps: so many times fewer bytes.

    In the first `start` steps they average after each (post-local SGD). With `hierarchy="host"` (or a process set)
    ranks of a host average after each step, too; that takes `hvd.init(process_sets="dynamic")`. Use it with `jax.grad`
    and optax as they are.

    Example:
        >>> params = {"w": jnp.full(2, float(hvd.rank()))}
        >>> training = hvd.LocalSGD(params, every=2)
        >>> for _ in range(2):
        ...     params = training.step(params)
        >>> params["w"].tolist()
        [0.5, 0.5]
    """

    def __init__(
        self,
        params: Any,
        every: int,
        start: int = 0,
        hierarchy: str | ProcessSet | None = None,
        process_set: ProcessSet = global_process_set,
        name: str = "local_sgd",
    ) -> None:
        self._parameters = _Parameters(params)
        self._core = averaging.Averaging(self._parameters, every, start, host_set(hierarchy), process_set, name)


class DiLoCo(_Training):
    """Ranks train alone. Every `every` steps an outer optimizer uses the mean of their changes as a gradient.

    `outer` is `hvd.Nesterov(lr, momentum)`. Streaming DiLoCo: `fragments` cuts the parameters into so many parts, which
    are sent one after the other; `delay` says for how many steps training goes on while a part is on its way; `alpha`
    is the share of its own values that a rank keeps when the part comes back. `compression` is written as "int8" or
    "int4 block=64". All ranks must begin with the same parameters. Use it with `jax.grad` and optax as they are.

    Example:
        >>> params = {"w": jnp.zeros(2)}
        >>> training = hvd.DiLoCo(params, hvd.Nesterov(1, 0), every=2)
        >>> for _ in range(2):
        ...     params = {"w": params["w"] + hvd.rank()}
        ...     params = training.step(params)
        >>> params["w"].tolist()
        [1.0, 1.0]
    """

    def __init__(
        self,
        params: Any,
        outer: Nesterov | None = None,
        every: int = 100,
        fragments: int = 1,
        delay: int = 0,
        alpha: float = 0.0,
        compression: EngineCompression | str | None = None,
        process_set: ProcessSet = global_process_set,
        name: str = "diloco",
    ) -> None:
        self._parameters = _Parameters(params)
        how = (outer, every, fragments, delay, alpha, compression, process_set, name)
        self._core = diloco.DiLoCo(self._parameters, *how)


class Gossip(_Training):
    """After each step, a rank sends half of what it has to one other rank, and to no one else (push-sum).

    `graph` says to whom: "exponential" (distances 1, 2, 4, ... in turn), "ring", or "random", by `seed`.

    Example:
        >>> params = {"w": jnp.full(2, float(hvd.rank()))}
        >>> training = hvd.Gossip(params)
        >>> training.step(params)["w"].tolist()
        [0.5, 0.5]
    """

    def __init__(
        self,
        params: Any,
        graph: str = "exponential",
        seed: int = 0,
        process_set: ProcessSet = global_process_set,
        name: str = "gossip",
    ) -> None:
        self._parameters = _Parameters(params)
        self._core = gossip.Gossip(self._parameters, graph, seed, process_set, name)
