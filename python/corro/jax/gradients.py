"""`value_and_grad` and `grad`: as JAX's, with the gradients of all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from corro._front.arguments import Average
from corro._front.process_sets import ProcessSet, global_process_set
from corro.jax._reduction import Reduction
from corro.jax.compression import Compression

__all__ = ["grad", "value_and_grad"]


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    name: str = "gradients",
    op: int = Average,
    compression: Any = Compression.none,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[str]] | None = None,
    process_set: ProcessSet = global_process_set,
    average_value: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.value_and_grad`, with gradients that are averaged over all ranks, in one call.

    The value stays this rank's, unless `average_value` has it averaged as well, in the same call. `op`, `compression`,
    `groups` and `process_set` are as for `DistributedOptimizer`; further options are JAX's. Use either this or
    `DistributedOptimizer`, not both: the second would do it again.

    Example:
        >>> loss = lambda w, x: (w * x).sum()
        >>> step = jax.jit(hvd.value_and_grad(loss))
        >>> value, gradient = step(jnp.ones(2), jnp.full((2,), 2.0 * hvd.rank()))
        >>> gradient
        Array([1., 1.], dtype=float32)
    """
    reduce = Reduction(name, op, compression, gradient_predivide_factor, groups, process_set)
    differentiate = jax.value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def reduced(*args: Any, **kwargs: Any) -> Any:
        value, gradients = differentiate(*args, **kwargs)
        if not average_value:
            return value, reduce(gradients)
        loss, aux = value if has_aux else (value, None)
        loss, gradients = reduce((loss, gradients))
        return ((loss, aux) if has_aux else loss), gradients

    return reduced


def grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """`jax.grad`, with gradients that are averaged over all ranks. Options as for `value_and_grad`.

    Example:
        >>> slope = hvd.grad(lambda w, x: (w * x).sum())
        >>> slope(jnp.ones(2), jnp.full((2,), 2.0 * hvd.rank()))
        Array([1., 1.], dtype=float32)
    """
    differentiate = value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def reduced(*args: Any, **kwargs: Any) -> Any:
        value, gradients = differentiate(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return reduced
