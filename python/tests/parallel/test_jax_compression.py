"""Compressed gradients with `corro.jax`, eager and compiled. Ranks of these jobs are on one host, so compression is told
to work inside of it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import corro.jax as hvd

ONEBIT = hvd.Compression.onebit(block=32, inside=True)
INT8 = hvd.Compression.int8(inside=True)


def values(rank, count=200):
    return np.random.default_rng(rank).uniform(-1, 1, count).astype(np.float32)


def mean(count=200):
    return np.mean([values(rank, count) for rank in range(hvd.size())], axis=0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_what_is_left_out_is_added_the_next_time(compiled):
    """One bit says little of a value; but the average of many steps is right, if what is owed is remembered."""

    def reduce(x):
        return hvd.allreduce(x, name=f"owed.{compiled}", compression=ONEBIT)

    reduce = jax.jit(reduce) if compiled else reduce
    mine = jnp.asarray(values(hvd.rank()))
    first = np.asarray(reduce(mine))
    if hvd.size() > 1:
        assert np.abs(first - mean()).max() > 0.3, "one bit can't be so right"
    total = first + sum(np.asarray(reduce(mine)) for _ in range(79))
    assert np.abs(total / 80 - mean()).max() < 0.15


def test_trees_keep_what_can_not_be_compressed():
    tree = {"a": jnp.asarray(values(hvd.rank())), "n": jnp.arange(3) + hvd.rank()}
    reduced = jax.jit(lambda tree: hvd.allreduce(tree, name="mixed", op=hvd.Sum, compression=INT8))(tree)
    np.testing.assert_allclose(reduced["a"], hvd.size() * mean(), atol=0.1 * hvd.size())
    np.testing.assert_array_equal(reduced["n"], [sum(i + rank for rank in range(hvd.size())) for i in range(3)])


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="give the tensor a name"):
        hvd.allreduce(jnp.ones(3), compression=INT8)
    with pytest.raises(ValueError, match="by the names of parameters"):
        hvd.allreduce(jnp.ones(3), name="x", compression={"*": INT8})


def test_derivatives_are_those_of_the_sum():
    def loss(x):
        return (hvd.allreduce(x, name="through", op=hvd.Sum, compression=INT8) ** 2).sum()

    result = jax.jit(jax.grad(loss))(jnp.ones(4))
    np.testing.assert_allclose(result, np.full(4, 2.0 * hvd.size() ** 2), rtol=0.02)


def train(compression, steps=60):
    """A line through noise, each rank with points of its own."""
    rng = np.random.default_rng(10 + hvd.rank())
    slope = np.linspace(-1, 1, 64).astype(np.float32)
    x = rng.normal(size=(64, 64)).astype(np.float32)
    y = x @ slope
    params = {"w": jnp.zeros(64), "b": jnp.zeros(())}
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.05), compression=compression)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        loss = lambda p: ((x @ p["w"] + p["b"] - y) ** 2).mean()  # noqa: E731
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params


def test_models_learn_and_stay_alike():
    plain = train(hvd.Compression.none)
    rules = {"*'b'*": hvd.Compression.none, "*": ONEBIT}
    for compression in (INT8, hvd.Compression.powersgd(rank=1, inside=True), rules, "int8 inside=yes"):
        params = train(compression)
        np.testing.assert_allclose(params["w"], plain["w"], atol=0.1)
        for other in hvd.allgather_object(jax.device_get(params)):
            np.testing.assert_array_equal(other["w"], params["w"])
    if hvd.size() > 1:
        entries = hvd.compression_report()
        name = next(name for name, entry in entries.items() if entry["compression"].startswith("onebit"))
        assert entries[name]["ratio"] > 2
        assert hvd.compression_state()
        hvd.load_compression_state(hvd.compression_state())


def test_auto_knows_that_one_host_needs_none():
    params = train("auto", steps=2)
    np.testing.assert_array_equal(params["w"], train(hvd.Compression.none, steps=2)["w"])
