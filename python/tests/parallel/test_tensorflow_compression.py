"""Compressed gradients with `corro.tensorflow`: eager, in a graph, and compiled by XLA. Ranks of these jobs are on one host,
so compression is told to work inside of it."""

import numpy as np
import pytest
import tensorflow as tf

import corro.tensorflow as hvd
from corro import _native

ONEBIT = hvd.Compression.onebit(block=32, inside=True)
INT8 = hvd.Compression.int8(inside=True)
MODES = ["eager", "graph"] + ([] if _native.tensorflow_xla_problem() else ["xla"])


def in_mode(mode, function):
    return function if mode == "eager" else tf.function(function, jit_compile=mode == "xla")


def values(rank, count=200):
    return np.random.default_rng(rank).uniform(-1, 1, count).astype(np.float32)


def mean(count=200):
    return np.mean([values(rank, count) for rank in range(hvd.size())], axis=0)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_left_out_is_added_the_next_time(mode):
    """One bit says little of a value; but the average of many steps is right, if what is owed is remembered."""
    reduce = in_mode(mode, lambda x: hvd.allreduce(x, name=f"owed_{mode}", compression=ONEBIT))
    mine = tf.constant(values(hvd.rank()))
    first = reduce(mine).numpy()
    if hvd.size() > 1:
        assert np.abs(first - mean()).max() > 0.3, "one bit can't be so right"
    total = first + sum(reduce(mine).numpy() for _ in range(79))
    assert np.abs(total / 80 - mean()).max() < 0.15


def test_groups_and_mistakes():
    pair = [tf.constant(values(hvd.rank())), tf.ones(3) * hvd.rank()]
    first, second = hvd.grouped_allreduce(pair, name="group", op=hvd.Sum, compression=INT8)
    np.testing.assert_allclose(first, hvd.size() * mean(), atol=0.1 * hvd.size())
    np.testing.assert_allclose(second, np.full(3, sum(range(hvd.size()))), rtol=0.02)
    with pytest.raises(ValueError, match="give the tensor a name"):
        hvd.allreduce(tf.ones(3), compression=INT8)
    with pytest.raises(ValueError, match="by the names of parameters"):
        hvd.allreduce(tf.ones(3), name="x", compression={"*": INT8})


def train(mode, compression, steps=60):
    """A line through noise, each rank with points of its own."""
    rng = np.random.default_rng(10 + hvd.rank())
    slope = np.linspace(-1, 1, 64).astype(np.float32)
    x = rng.normal(size=(64, 64)).astype(np.float32)
    y = (x @ slope)[:, None]
    weight, bias = tf.Variable(tf.zeros((64, 1)), name="weight"), tf.Variable(0.0, name="bias")

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.constant(x) @ weight + bias - y) ** 2)
        # A new tape in each step, as most programs have it.
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        for variable, gradient in zip((weight, bias), tape.gradient(loss, [weight, bias]), strict=True):
            variable.assign_sub(0.05 * gradient)

    step = in_mode(mode, step)
    for _ in range(steps):
        step()
    return weight.numpy()


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_models_learn_and_stay_alike(mode):
    plain = train(mode, hvd.Compression.none)
    rules = {"bias*": hvd.Compression.none, "*": ONEBIT}
    for compression in (INT8, rules, "int8 inside=yes"):
        weight = train(mode, compression)
        np.testing.assert_allclose(weight, plain, atol=0.1)
        for other in hvd.allgather_object(weight):
            np.testing.assert_array_equal(other, weight)
    if hvd.size() > 1:
        entries = [e for e in hvd.compression_report().values() if e["compression"].startswith("onebit")]
        assert max(entry["ratio"] for entry in entries) > 2
        hvd.load_compression_state(hvd.compression_state())


def test_auto_knows_that_one_host_needs_none():
    np.testing.assert_array_equal(train("graph", "auto", steps=2), train("graph", hvd.Compression.none, steps=2))
