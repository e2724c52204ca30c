"""Pytrees as the other ranks see them: which leaves are arrays, and how those become something that can travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_array(leaf: Any) -> bool:
    """Whether a leaf has elements that can be sent. Trees of models also hold functions, names and the like."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and (is_key(leaf) or leaf.dtype.kind != "O")


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of keys for random numbers: it has no elements that anyone but JAX knows."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def mapped(change: Callable[[list[Any]], list[Any]], tree: Any) -> Any:
    """`tree` with all of its arrays changed at once; what is not an array stays, and keys travel as numbers."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    plain = [jax.random.key_data(leaves[i]) if is_key(leaves[i]) else leaves[i] for i in places]
    for i, leaf in zip(places, change(plain), strict=True):
        old = leaves[i]
        leaves[i] = jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(old)) if is_key(old) else leaf
    return jax.tree_util.tree_unflatten(structure, leaves)
