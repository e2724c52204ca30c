"""Each use of a collective in a program gets a name of its own.

A jitted function that a program calls twice is traced once, and XLA runs the two calls in any order where neither needs the
other's result. If their collectives had one name, ranks could pair the first of one with the second of another, and nobody
would notice. So programs inside a program are not shared if they hold collectives: each use is written out by itself, and
the collectives are counted as they are written (`_primitive`). All ranks write the same program, so they count alike.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from corro.jax import _versions
from corro.jax._versions import ClosedJaxpr, Jaxpr

_known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def keep_apart(collective: Any) -> None:
    """From now on, no two uses of a program that holds `collective` share what is written for them."""
    for primitive in _versions.primitives_with_programs():
        _versions.register_lowering(primitive, _apart(_versions.lowering_of(primitive), collective))


def _apart(rule: Callable[..., Any], collective: Any) -> Callable[..., Any]:
    def rule_apart(ctx: Any, *args: Any, **params: Any) -> Any:
        return rule(ctx, *args, **{name: _fresh(value, collective) for name, value in params.items()})

    return rule_apart


def _fresh(value: Any, collective: Any) -> Any:
    """A parameter, with a copy of each program that holds collectives: JAX knows programs by identity."""
    if isinstance(value, ClosedJaxpr) and _holds(value.jaxpr, collective):
        return ClosedJaxpr(value.jaxpr.replace(), value.consts)
    if isinstance(value, Jaxpr) and _holds(value, collective):
        return value.replace()
    if type(value) is tuple and any(isinstance(item, (ClosedJaxpr, Jaxpr)) for item in value):
        return tuple(_fresh(item, collective) for item in value)
    return value


def _holds(jaxpr: Any, collective: Any) -> bool:
    known = _known.get(jaxpr)
    if known is None:
        known = any(
            eqn.primitive is collective or any(_holds(inner, collective) for inner in _programs(eqn.params))
            for eqn in jaxpr.eqns
        )
        _known[jaxpr] = known
    return known


def _programs(params: dict[str, Any]) -> list[Any]:
    """The programs among the parameters of a primitive."""
    found = []
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, Jaxpr):
                found.append(item)
    return found
