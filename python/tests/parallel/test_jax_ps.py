"""Training by parameter servers in JAX. Runs on all ranks of a job."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import corro.jax as hvd
from corro import ps

TARGET = jnp.arange(1.0, 6.0)


def loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.square(x @ params["w"] + params["b"] - x @ TARGET).mean()


def trained(
    optimizer: optax.GradientTransformationExtraArgs, steps: int, jit: bool, **extra: float
) -> dict[str, jax.Array]:
    params = {"w": jnp.zeros(5), "b": jnp.zeros(())}
    state = optimizer.init(params)

    def step(params: dict[str, jax.Array], state: object, x: jax.Array) -> tuple[dict[str, jax.Array], object]:
        gradients = jax.grad(loss)(params, x)
        updates, state = optimizer.update(gradients, state, params, **extra)
        return optax.apply_updates(params, updates), state

    if jit:
        step = jax.jit(step)
    random = np.random.default_rng(hvd.rank())
    for _ in range(steps):
        params, state = step(params, state, jnp.asarray(random.normal(size=(32, 5)), jnp.float32))
    return jax.block_until_ready(params)


@pytest.mark.parametrize("jit", [True, False])
def test_sums_have_the_bits_of_an_allreduce(jit: bool) -> None:
    by_allreduce = trained(hvd.DistributedOptimizer(optax.adam(0.1)), 20, jit)
    by_servers = trained(hvd.DistributedOptimizer(optax.adam(0.1), mode="ps"), 20, jit)
    for key, value in by_allreduce.items():
        assert np.array_equal(value, by_servers[key]), key


def test_passes_add_up_before_servers_see_them() -> None:
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    by_allreduce = trained(hvd.DistributedOptimizer(optax.sgd(0.1), **options), 10, True)
    by_servers = trained(hvd.DistributedOptimizer(optax.sgd(0.1), mode="ps", **options), 10, True)
    assert np.array_equal(by_allreduce["w"], by_servers["w"])


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, "int8 block=32"])
def test_fewer_bytes(compression: object) -> None:
    got = trained(hvd.DistributedOptimizer(optax.sgd(0.1), mode="ps", compression=compression), 200, True)
    assert np.abs(got["w"] - TARGET).max() < 0.05


@pytest.mark.parametrize("staleness", [1, None])
def test_ranks_may_be_apart_and_all_still_learn(staleness: int | None) -> None:
    optimizer = hvd.DistributedOptimizer(ps.SGD(lr=0.05), mode="ps", staleness=staleness)
    got = trained(optimizer, 300, True, learning_rate=0.06)
    assert np.abs(got["w"] - TARGET).max() < 0.05
    hvd.barrier()


def test_wrong_words_are_explained() -> None:
    with pytest.raises(ValueError, match="the servers run the optimizer"):
        hvd.DistributedOptimizer(optax.sgd(0.1), mode="ps", staleness=1)
    with pytest.raises(ValueError, match='mode is "allreduce" or "ps"'):
        hvd.DistributedOptimizer(optax.sgd(0.1), mode="ring")
    with pytest.raises(ValueError, match=r"hvd\.Average and hvd\.Sum"):
        hvd.DistributedOptimizer(optax.sgd(0.1), mode="ps", op=hvd.Adasum)
    optimizer = hvd.DistributedOptimizer(ps.SGD(lr=0.1), mode="ps", staleness=1)
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(optimizer.init)({"w": jnp.zeros(2)})
    state = optimizer.init({"w": jnp.zeros(2)})
    with pytest.raises(ValueError, match="needs the parameters"):
        optimizer.update({"w": jnp.zeros(2)}, state)
