"""`DistributedOptimizer`: any optax transformation, with the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from corro._front.arguments import Adasum, Average
from corro._front.process_sets import ProcessSet, global_process_set
from corro.jax._reduction import Reduction
from corro.jax._watching import TrainingWatch
from corro.jax.compression import Compression

if TYPE_CHECKING:
    import optax

    from corro import ps

__all__ = ["AggregationState", "DistributedOptimizer"]


class AggregationState(NamedTuple):
    """The state of an optimizer that adds up several passes: its own, the sum so far, and how many passes that is."""

    inner: Any
    gradients: Any
    passes: Any


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: optax.GradientTransformation | ps.Optimizer,
    name: str = "DistributedOptimizer",
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Sequence[str]] | None = None,
    process_set: ProcessSet = global_process_set,
    mode: str = "allreduce",
    staleness: int | None = 0,
    servers: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """An optax transformation that reduces the gradients over all ranks before `optimizer` sees them.

    All leaves travel in one call, or in as many as `groups` says; it may also list the names of leaves that
    belong together, as `jax.tree_util.keystr` writes them. `op` is Average, Sum or Adasum, with which every rank takes its
    own step and the steps are combined. With `backward_passes_per_step` gradients of so many calls of `update` are added up
    (`average_aggregated_gradients`: averaged) before they are reduced; in between the updates are zero.

    `mode="ps"` has parameter servers do it. With `staleness=0` they average gradients. With a larger `staleness` ranks
    may be that many steps apart (None: any number), and servers own the parameters and run the optimizer, which is said
    in their words: `hvd.DistributedOptimizer(corro.ps.Adam(lr=1e-3), mode="ps", staleness=3)`. Then `update` needs the
    parameters, and takes a `learning_rate=` in place of the optimizer's own. `servers` is as in `corro.ps.Store`.

    Ranks must make the same calls of `update`. Give different names to two optimizers of one program.

    Example:
        >>> import optax
        >>> optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
        >>> params = {"w": jnp.ones(2)}
        >>> gradients = {"w": jnp.full((2,), 2.0 * hvd.rank())}
        >>> updates, _ = optimizer.update(gradients, optimizer.init(params), params)
        >>> optax.apply_updates(params, updates)["w"]
        Array([0.9, 0.9], dtype=float32)
    """
    import optax

    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    reduce: Callable[[Any], Any]
    if mode == "allreduce":
        reduce = Reduction(name, op, compression, gradient_predivide_factor, groups, process_set)
    else:
        from corro.jax import _served
        from corro.ps import _training

        _training.check(mode, staleness)
        codes = _training.codes_of(compression, Compression.none)
        if staleness != 0:
            return _served.owned(optimizer, name, staleness, process_set, servers, codes)  # type: ignore[arg-type]
        rule = _training.rule_of(op, gradient_predivide_factor)
        reduce = _served.ServedReduction(name, rule, process_set, servers, codes)
    inner = optax.with_extra_args_support(optimizer)  # type: ignore[arg-type]
    watch = TrainingWatch(process_set, name)

    def step(gradients: Any, state: Any, params: Any, extra: dict[str, Any]) -> tuple[Any, Any]:
        if op != Adasum:
            return inner.update(reduce(gradients), state, params, **extra)
        updates, state = inner.update(gradients, state, params, **extra)
        return reduce(updates), state

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        updates, after = step(gradients, state, params, extra)
        watch.look(params, state, updates)
        return updates, after

    if backward_passes_per_step == 1:
        return optax.GradientTransformationExtraArgs(inner.init, update)

    def init(params: Any) -> AggregationState:
        zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
        return AggregationState(inner.init(params), zeros, jnp.zeros((), jnp.int32))

    def aggregating(gradients: Any, state: AggregationState, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        total = jax.tree_util.tree_map(jnp.add, state.gradients, gradients)

        def whole() -> tuple[Any, AggregationState]:
            factor = 1.0 / backward_passes_per_step if average_aggregated_gradients else 1.0
            scaled = jax.tree_util.tree_map(lambda g: g * jnp.asarray(factor, g.dtype), total)
            updates, after = step(scaled, state.inner, params, extra)
            zeros = jax.tree_util.tree_map(jnp.zeros_like, total)
            return _like(updates, gradients), AggregationState(after, zeros, jnp.zeros((), jnp.int32))

        def part() -> tuple[Any, AggregationState]:
            zeros = jax.tree_util.tree_map(jnp.zeros_like, gradients)
            return zeros, AggregationState(state.inner, total, state.passes + 1)

        updates, after = jax.lax.cond(state.passes + 1 >= backward_passes_per_step, whole, part)
        watch.look(params, state.inner, updates)
        return updates, after

    return optax.GradientTransformationExtraArgs(init, aggregating)


def _like(updates: Any, gradients: Any) -> Any:
    """Updates in the dtypes of the gradients, so that a step and a pass in between give the same types."""
    return jax.tree_util.tree_map(lambda update, gradient: update.astype(gradient.dtype), updates, gradients)
