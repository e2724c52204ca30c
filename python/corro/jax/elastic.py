"""Training that survives a change of the ranks: `hvd.elastic.run`, and a state of any pytrees.

Those who are left keep their compiled functions: how many ranks there are is no part of them, unless they ask for it (see
`_constants`); then they are compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from corro import _native
from corro._front import basics
from corro._front.elastic import ObjectState, P, R, restart, run_fn
from corro._front.objects import broadcast_object
from corro.jax import _constants
from corro.jax._eager import translated
from corro.jax._trees import is_key, mapped
from corro.jax.mpi_ops import broadcast

__all__ = ["JaxState", "run"]


def run(func: Callable[P, R]) -> Callable[P, R]:
    """Decorates `func(state, ...)`: it is started again, from the last commit, when ranks are lost or added.

    The state goes first. Raises what `func` raises, but for lost ranks and changed hosts.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     while state.epoch < 3:
        ...         state.epoch += 1
        ...         state.commit()
        ...     return state.epoch
        >>> train(hvd.elastic.JaxState(params={"w": jnp.ones(2)}, epoch=0))
        3
    """
    return run_fn(translated(func), _restart)


def _restart() -> None:
    restart()
    _constants.forget_if_changed()


class JaxState(ObjectState):
    """Pytrees of arrays and plain values, as attributes: parameters, optimizer state, keys, epoch, batch.

    `commit()` copies the arrays, so that a step may have its arguments donated, and looks whether hosts have changed;
    `restore()` goes back to the last commit; `sync()` takes over what rank 0 has.

    Example:
        >>> state = hvd.elastic.JaxState(params={"w": jnp.ones(2)}, epoch=0)
        >>> state.params = {"w": jnp.zeros(2)}
        >>> state.restore()
        >>> state.params["w"]
        Array([1., 1.], dtype=float32)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)
        self._saved_state = _copied(kwargs)

    def save(self) -> None:
        self._saved_state = _copied({name: getattr(self, name) for name in self._saved_state})

    def restore(self) -> None:
        for name, value in _copied(self._saved_state).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Takes over what rank 0 has now, and saves it."""
        everything = {name: getattr(self, name) for name in self._saved_state}
        for name, value in _from_root(everything).items():
            setattr(self, name, value)
        self.save()


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """A copy that no donation takes away. Waits for the arrays: if they are not to come, that is known here."""
    copies = mapped(lambda arrays: [jnp.copy(a) if isinstance(a, jax.Array) else a.copy() for a in arrays], values)
    return jax.block_until_ready(copies)


class _Place:
    """Where an array belongs in what the root has sent of the rest."""

    def __init__(self, array: Any) -> None:
        self.shape, self.dtype = tuple(array.shape), np.dtype(array.dtype)


def _from_root(tree: Any) -> Any:
    """What rank 0 has: the arrays by one broadcast, everything else as an object."""
    arrays: list[Any] = []

    def take(found: list[Any]) -> list[Any]:
        arrays.extend(found)
        return [_Place(array) for array in found]

    if _native.rank() == 0:
        leaves, structure = jax.tree_util.tree_flatten(_as_numbers(tree, take))
        broadcast_object(leaves, 0, "elastic.rest")
        if arrays:
            broadcast(arrays, 0, "elastic.arrays")
        return tree
    leaves = broadcast_object(None, 0, "elastic.rest")
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, _Place)]
    if places:
        empty = [jnp.zeros(leaves[i].shape, leaves[i].dtype) for i in places]
        for i, array in zip(places, broadcast(empty, 0, "elastic.arrays"), strict=True):
            leaves[i] = array
    own, structure = jax.tree_util.tree_flatten(tree)
    if len(own) != len(leaves):
        raise RuntimeError(
            f"rank 0's state has {len(leaves)} leaves, and that of rank {_native.rank()} has {len(own)}: all ranks must "
            f"make their state alike."
        )
    restored = [
        jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(mine)) if is_key(mine) else leaf
        for mine, leaf in zip(own, leaves, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structure, restored)


def _as_numbers(tree: Any, change: Callable[[list[Any]], list[Any]]) -> Any:
    """As `_trees.mapped`, but what were keys stays what `change` made of their numbers."""
    numbers = jax.tree_util.tree_map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, tree)
    return mapped(change, numbers)
