"""`DistributedOptimizer(..., mode="ps")`: parameter servers sum gradients, or own the parameters, also in compiled code.

A compiled step calls back into Python for this (`io_callback`, in order): arrays of the CPU are read where they lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from corro import ps
from corro._front import basics
from corro._front.arguments import set_size
from corro._front.engine_compression import Settings
from corro._front.process_sets import ProcessSet
from corro.ps._training import Owned, Servers, Sums

if TYPE_CHECKING:
    import optax


class ServedState(NamedTuple):
    """The state of an optimizer that servers have: how many steps this rank has taken. The rest is at the servers."""

    steps: Any


def _named_leaves(name: str, tree: Any) -> tuple[list[str], list[Any], Any]:
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [f"{name}{jax.tree_util.keystr(path)}" for path, _ in paths], [leaf for _, leaf in paths], structure


def _like(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype)


class ServedReduction:
    """Reduces trees of gradients, as `Reduction` does, by servers that sum."""

    def __init__(self, name: str, rule: ps.Rule, process_set: ProcessSet, servers: Servers, codes: Settings) -> None:
        self._name = name
        self._alone = set_size(process_set) == 1 and not basics.elastic_enabled()
        self._sums = Sums(rule, process_set, servers, codes)

    def __call__(self, gradients: Any) -> Any:
        """The same tree, reduced."""
        if self._alone:
            return gradients
        names, leaves, structure = _named_leaves(self._name, gradients)
        # Integers have gradients without elements.
        moving = [i for i, leaf in enumerate(leaves) if getattr(leaf, "dtype", None) != jax.dtypes.float0]

        def exchange(*arrays: Any) -> list[Any]:
            return self._sums.all([names[i] for i in moving], [np.asarray(array) for array in arrays])

        reduced = io_callback(exchange, [_like(leaves[i]) for i in moving], *(leaves[i] for i in moving), ordered=True)
        for i, leaf in zip(moving, reduced, strict=True):
            leaves[i] = leaf
        return jax.tree_util.tree_unflatten(structure, leaves)


def owned(
    optimizer: ps.Optimizer,
    name: str,
    staleness: int | None,
    process_set: ProcessSet,
    servers: Servers,
    codes: Settings,
) -> optax.GradientTransformationExtraArgs:
    """An optax transformation whose updates bring parameters to where servers have them."""
    import optax

    if not isinstance(optimizer, ps.SGD | ps.Adam | ps.Adagrad | ps.RowAdagrad):
        raise ValueError(
            'with mode="ps" and a staleness other than 0 the servers run the optimizer, and cannot run one of optax. Give '
            'one of theirs: hvd.DistributedOptimizer(corro.ps.Adam(lr=1e-3), mode="ps", staleness=3).'
        )
    # The parameters as this rank has them: what a store begins with.
    latest: dict[str, Any] = {}
    store = Owned(optimizer, lambda: list(latest.items()), staleness, process_set, servers, codes)

    def init(params: Any) -> ServedState:
        names, leaves, _ = _named_leaves(name, params)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise ValueError(
                'with mode="ps" and a staleness call optimizer.init(params) outside of jit: servers take the values.'
            )
        latest.update({key: np.asarray(leaf) for key, leaf in zip(names, leaves, strict=True)})
        store.open(lambda: None)
        return ServedState(jnp.zeros((), jnp.int32))

    def update(gradients: Any, state: ServedState, params: Any = None, **extra: Any) -> tuple[Any, ServedState]:
        if params is None:
            raise ValueError(
                'with mode="ps" and a staleness, update needs the parameters: update(gradients, state, params).'
            )
        names, leaves, structure = _named_leaves(name, params)
        pushed = jax.tree_util.tree_leaves(gradients)
        rate = extra.get("learning_rate")

        def exchange(rate: Any, gradients: Any, current: Any) -> list[Any]:
            latest.update({key: np.asarray(value) for key, value in zip(names, current, strict=False)})
            for key, gradient in zip(names, gradients, strict=True):
                store.push(key, np.asarray(gradient), None if np.isnan(rate) else float(rate))
            store.step()
            return [one.wait() for one in [store.pull(key) for key in names]]

        # Only if the ranks may change are the parameters looked at again.
        current = leaves if basics.elastic_enabled() else []
        lr = jnp.float32(jnp.nan if rate is None else rate)
        values = io_callback(exchange, [_like(leaf) for leaf in leaves], lr, pushed, current, ordered=True)
        updates = [value - leaf for value, leaf in zip(values, leaves, strict=True)]
        return jax.tree_util.tree_unflatten(structure, updates), ServedState(state.steps + 1)

    return optax.GradientTransformationExtraArgs(init, update)
