"""Running collectives, and what they fail with.

Outside of any trace a collective is waited for, and fails with the exception that all fronts raise. In compiled code it
fails with JAX's: XLA hands on a text. `failure_of` finds what was behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from corro import _native
from corro._errors import HorovodInternalError, UnregisteredProcessSet
from corro._front.process_sets import ProcessSet
from corro.jax import _primitive
from corro.jax._versions import trace_state_clean

P = ParamSpec("P")
R = TypeVar("R")


def collective(
    kind: str, arrays: Sequence[Any], name: str | None, process_set: ProcessSet, **options: Any
) -> list[Any]:
    """One call for all of the arrays: part of the program that is being traced, or done at once."""
    if not arrays:
        return []
    number = set_number(process_set)
    if not trace_state_clean():
        return _primitive.collective(kind, arrays, name, number, **options)
    with failures_translated():
        return jax.block_until_ready(_primitive.collective(kind, arrays, name, number, **options))


def set_number(process_set: ProcessSet) -> int:
    """The number of a process set, which is a constant of compiled programs."""
    _native.rank()  # raises when not initialised
    if process_set.process_set_id is None:
        raise UnregisteredProcessSet(f"{process_set} does not exist, or has not been registered.")
    return process_set.process_set_id


@contextmanager
def failures_translated() -> Iterator[None]:
    """Raises what a collective has failed with, in place of what JAX makes of it."""
    try:
        yield
    except HorovodInternalError:
        raise
    except Exception as error:
        # JAX raises its own class, or where it takes a short way a plain `ValueError`.
        behind = failure_of(error)
        if behind is None:
            raise
        raise behind from error


def failure_of(error: BaseException) -> BaseException | None:
    """What a collective has failed with, if that is why compiled code has."""
    return _native.jax_failure(str(error))


def finish() -> None:
    """Waits for all that this thread has had JAX do: a device does what it is given in order."""
    for device in jax.local_devices():
        try:
            jax.block_until_ready(jax.device_put(jnp.zeros(1), device) + 1)
        except Exception:
            return  # whoever looks at the results is told why


def translated(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, with the failures of collectives in compiled code as what the other fronts raise."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with failures_translated():
            return function(*args, **kwargs)

    return wrapper
