"""Operations of `corro.tensorflow` in the midst of graphs on a GPU, against arithmetic on the CPU.

Their kernels ask for tensors in the host's memory. So a case computes on the GPU before and after: what TensorFlow copies
too early, too late or not at all would be seen in the numbers. Without matrix products: no case needs cuBLAS.
"""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from each import each

import corro.tensorflow as hvd
import corro.tensorflow.keras as hvd_keras

DEVICE = "/CPU:0" if os.environ.get("CORRO_TEST_DEVICE") == "cpu" else "/GPU:0"
OPS = {
    "sum": (hvd.Sum, lambda rows: rows.sum(0)),
    "min": (hvd.Min, lambda rows: rows.min(0)),
    "max": (hvd.Max, lambda rows: rows.max(0)),
    "product": (hvd.Product, lambda rows: rows.prod(0)),
}
# Nothing, one, an odd number, more than a megabyte.
LENGTHS = [0, 1, 1037, 300_001]


def numbers(length: int, dtype: str, rank: int) -> Any:
    """Small whole numbers, exact in every type and in sums of many ranks; the same for the same rank."""
    return np.random.default_rng(100 + rank).integers(0, 4, length).astype(tf.as_dtype(dtype).as_numpy_dtype)


def everyone(length: int, dtype: str) -> Any:
    return np.stack([numbers(length, dtype, rank) for rank in range(hvd.size())]).astype("float64")


def same(found: Any, wanted: Any) -> None:
    assert found.device.endswith(DEVICE.replace("/", "/device:")), f"the result is on {found.device}"
    np.testing.assert_array_equal(tf.cast(found, tf.float64).numpy(), np.asarray(wanted, "float64"))


def doubled_on_both_sides(collective: Any, mine: Any) -> Any:
    """A graph on the GPU with a collective in its midst: twice the result for twice the tensor."""

    @tf.function
    def graph(x):
        with tf.device(DEVICE):
            return tf.identity(collective(x + x) + tf.constant(1, x.dtype))

    with tf.device(DEVICE):
        return graph(tf.constant(mine))


@each(op=["sum", "min", "max"], dtype=["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_allreduce(op, dtype):
    reduce, wanted = OPS[op]
    for length in LENGTHS:
        found = doubled_on_both_sides(lambda x: hvd.allreduce(x, op=reduce), numbers(length, dtype, hvd.rank()))
        same(found, wanted(everyone(length, dtype) * 2) + 1)


def test_the_kernel_is_on_the_gpu():
    with tf.Graph().as_default():
        with tf.device(DEVICE):
            output = hvd.allreduce(tf.random.uniform([4]) + 1.0, op=hvd.Sum, name="placed")
        seen = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        with tf.compat.v1.Session() as session:
            session.run(output, options=options, run_metadata=seen)
    placed = {
        node.name: node.device
        for graph in seen.partition_graphs
        for node in graph.node
        if node.op.startswith("Horovod")
    }
    assert placed, "no operation of ours was run"
    assert all(device.endswith(DEVICE.replace("/", "/device:")) for device in placed.values()), placed


@each(length=LENGTHS)
def test_gather_broadcast_exchange_and_scatter(length):
    size, rank = hvd.size(), hvd.rank()
    mine = np.repeat(numbers(length, "float32", rank)[:, None], size, axis=1).reshape(-1)
    all_of_them = np.stack(
        [np.repeat(numbers(length, "float32", r)[:, None], size, axis=1).reshape(-1) for r in range(size)]
    )
    same(doubled_on_both_sides(hvd.allgather, mine), all_of_them.reshape(-1) * 2 + 1)
    same(doubled_on_both_sides(lambda x: hvd.broadcast(x, size - 1), mine), all_of_them[-1] * 2 + 1)
    part = all_of_them.reshape(size, size, length)
    same(doubled_on_both_sides(hvd.alltoall, mine), part[:, rank].reshape(-1) * 2 + 1)
    same(doubled_on_both_sides(lambda x: hvd.reducescatter(x, op=hvd.Sum), mine), part.sum(0)[rank] * 2 + 1)


def test_gathers_of_sizes_that_change_on_one_rank():
    """So many of one size that it becomes a plan; then one rank brings another number of rows."""
    size, rank = hvd.size(), hvd.rank()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def gathered(x):
        with tf.device(DEVICE):
            return hvd.allgather(x * 2, name="sizes that change") + 1

    for step, rows in enumerate([7] * 20 + [9, 7, 7, 3, 0] + [7] * 20 + [40_000, 7]):
        lengths = [rows if r == step % size else 7 for r in range(size)]
        wanted = np.concatenate([numbers(n, "float32", r) for r, n in enumerate(lengths)])
        same(gathered(tf.constant(numbers(lengths[rank], "float32", rank))), wanted * 2 + 1)


def test_a_group():
    parts = [numbers(length, "float32", hvd.rank()) for length in LENGTHS]

    @tf.function
    def graph(tensors):
        with tf.device(DEVICE):
            return [x + 1.0 for x in hvd.grouped_allreduce([x * 2.0 for x in tensors], op=hvd.Sum)]

    with tf.device(DEVICE):
        found = graph([tf.constant(x) for x in parts])
    for tensor, length in zip(found, LENGTHS, strict=True):
        same(tensor, everyone(length, "float32").sum(0) * 2 + 1)


@each(seed=[0, 1, 2])
def test_a_long_computation_is_waited_for(seed):
    """Some milliseconds of kernels before each collective, and what they write is used at once: 20 in a row."""
    start = np.random.default_rng(seed).integers(0, 4, 1 << 20).astype("float32") + hvd.rank()

    @tf.function
    def chain(x):
        with tf.device(DEVICE):
            for _ in range(20):
                for _ in range(20):
                    x = tf.math.floormod(x * 3.0 + 1.0, 97.0)
                x = tf.math.floormod(hvd.allreduce(x, op=hvd.Sum), 89.0)
            return x

    with tf.device(DEVICE):
        found = chain(tf.constant(start))
    rows = [np.random.default_rng(seed).integers(0, 4, 1 << 20).astype("float32") + r for r in range(hvd.size())]
    for _ in range(20):
        for _ in range(20):
            rows = [np.mod(row * 3 + 1, 97) for row in rows]
        rows = [np.mod(sum(rows), 89)] * hvd.size()
    same(found, rows[0])


def test_gradients_pass_through():
    size, rank = hvd.size(), hvd.rank()

    @tf.function
    def gradient(x):
        with tf.device(DEVICE), tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(hvd.allreduce(x * x, op=hvd.Sum) * tf.constant([1.0, 2.0, 3.0]))
        return tape.gradient(loss, x)

    with tf.device(DEVICE):
        found = gradient(tf.constant([1.0, 2.0, 3.0]) * (rank + 1.0))
    same(found, np.array([2.0, 8.0, 18.0]) * (rank + 1) * size)


def test_variables_are_broadcast():
    with tf.device(DEVICE):
        variables = [tf.Variable(numbers(length, "float32", hvd.rank())) for length in LENGTHS]
    hvd.broadcast_variables(variables, root_rank=0)
    for variable, length in zip(variables, LENGTHS, strict=True):
        same(variable + 0.0, numbers(length, "float32", 0))


@each(way=["tape", "keras"])
def test_training(way):
    """A line is fitted to data of all ranks: as one process would on all of it."""
    generator = np.random.default_rng(5)
    inputs = generator.normal(size=(hvd.size(), 64)).astype("float32")
    targets = 3.0 * inputs + 0.5 + generator.normal(size=inputs.shape).astype("float32") * 0.1
    with tf.device(DEVICE):
        slope, offset = (keras.Variable(0.0) if way == "keras" else tf.Variable(0.0) for _ in range(2))
        x, y = tf.constant(inputs[hvd.rank()]), tf.constant(targets[hvd.rank()])
    optimizer = keras.optimizers.SGD(0.1)
    if way == "keras":
        optimizer = hvd_keras.DistributedOptimizer(optimizer)

    @tf.function
    def step():
        with tf.device(DEVICE):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((slope * x + offset - y) ** 2)
            variables = [slope, offset]
            if way == "keras":
                optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
            else:
                for variable, change in zip(
                    variables, hvd.DistributedGradientTape(tape).gradient(loss, variables), strict=True
                ):
                    variable.assign_sub(0.1 * change)

    for _ in range(30):
        step()
    a = b = 0.0
    for _ in range(30):
        error = a * inputs + b - targets
        a, b = a - 0.1 * 2 * (error * inputs).mean(), b - 0.1 * 2 * error.mean()
    np.testing.assert_allclose([float(slope), float(offset)], [a, b], rtol=1e-4)
