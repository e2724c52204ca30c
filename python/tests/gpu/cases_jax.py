"""Every operation of `corro.jax` in programs that run on a GPU, against arithmetic on the CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from each import each

import corro.jax as hvd

OPS = {
    "sum": (hvd.Sum, lambda rows: rows.sum(0)),
    "min": (hvd.Min, lambda rows: rows.min(0)),
    "max": (hvd.Max, lambda rows: rows.max(0)),
    "product": (hvd.Product, lambda rows: rows.prod(0)),
}
DTYPES = ["float16", "bfloat16", "float32", "int8", "int32", "uint8"]
# Nothing, one, an odd number, more than a megabyte.
LENGTHS = [0, 1, 1037, 300_001]


def numbers(length: int, dtype: str, rank: int) -> Any:
    """Small whole numbers, exact in every type and in sums of many ranks; on the CPU. The same for the same rank."""
    return np.random.default_rng(100 + rank).integers(0, 4, length).astype(jnp.dtype(dtype))


def everyone(length: int, dtype: str) -> Any:
    return np.stack([numbers(length, dtype, rank) for rank in range(hvd.size())]).astype("float64")


def same(found: Any, wanted: Any) -> None:
    device = jax.devices()[0]
    assert found.devices() == {device}, f"the result is on {found.devices()}"
    np.testing.assert_array_equal(np.asarray(found, "float64"), np.asarray(wanted, "float64"))


@each(op=list(OPS), dtype=DTYPES)
def test_allreduce(op, dtype):
    reduce, wanted = OPS[op]
    step = jax.jit(lambda x: hvd.allreduce(x, op=reduce))
    for length in LENGTHS:
        mine = jnp.asarray(numbers(length, dtype, hvd.rank()))
        same(step(mine), wanted(everyone(length, dtype)))
        same(mine, numbers(length, dtype, hvd.rank()))


def test_the_program_calls_the_engine_itself():
    text = jax.jit(hvd.allreduce).lower(jnp.ones(3)).as_text()
    assert "corro_collective" in text, text
    assert "callback" not in text, text


def test_a_tree_travels_in_one_call():
    tree = {
        "a": [numbers(n, "float32", hvd.rank()) for n in (3, 0, 500, 70_000)],
        "b": numbers(300_001, "int32", hvd.rank()),
    }
    found = jax.jit(lambda t: hvd.allreduce(t, op=hvd.Sum))(jax.tree.map(jnp.asarray, tree))
    for array, one in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        same(array, everyone(one.size, one.dtype.name).sum(0))


def test_scale_factors_and_averages():
    x = jnp.full(1000, 2.0 * (hvd.rank() + 1))
    same(jax.jit(hvd.allreduce)(x), np.full(1000, float(hvd.size() + 1)))
    scaled = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0))(x)
    same(scaled, np.full(1000, 2.0 * hvd.size() * (hvd.size() + 1)))


@each(dtype=DTYPES)
def test_rows_are_gathered_and_dealt_out(dtype):
    rank, size = hvd.rank(), hvd.size()
    rows = [2 * each + 1 for each in range(size)]
    parts = [numbers(3 * count, dtype, r).reshape(count, 3) for r, count in enumerate(rows)]
    gather = jax.jit(lambda x: hvd.allgather(x, rows=rows))
    same(gather(jnp.asarray(parts[rank])), np.concatenate(parts))
    whole = numbers(size * 5, dtype, rank)
    mine = slice(5 * rank, 5 * rank + 5)
    wanted = everyone(size * 5, dtype).sum(0)[mine]
    same(jax.jit(lambda x: hvd.reducescatter(x, op=hvd.Sum))(jnp.asarray(whole)), wanted)
    sent = np.concatenate([np.full(7, 10 * rank + to) for to in range(size)]).astype(jnp.dtype(dtype))
    received = jax.jit(hvd.alltoall)(jnp.asarray(sent))
    same(received, np.concatenate([np.full(7, 10 * sender + rank) for sender in range(size)]).astype(sent.dtype))


@each(dtype=[*DTYPES, "bool", "float8_e4m3fn", "complex64"])
def test_broadcast(dtype):
    root = hvd.size() - 1
    for length in LENGTHS:
        mine = jnp.asarray(np.random.default_rng(hvd.rank()).integers(0, 2, length)).astype(dtype)
        wanted = jnp.asarray(np.random.default_rng(root).integers(0, 2, length)).astype(dtype)
        found = jax.jit(lambda x: hvd.broadcast(x, root))(mine)
        assert found.dtype == wanted.dtype
        assert (np.asarray(found) == np.asarray(wanted)).all()


def test_the_order_of_the_stream_is_kept():
    # What goes in is computed late, and what comes out is overwritten soon: a call that does not wait for the stream, or
    # that the stream does not wait for, has other numbers.
    size, rank = hvd.size(), hvd.rank()

    @jax.jit
    def step(x, scale):
        for _ in range(20):
            x = jnp.tanh(x @ jnp.full((512, 512), 1 / 512.0)) * 0 + x
        y = hvd.allreduce(x * scale, op=hvd.Sum)
        return y - x.shape[0], y @ jnp.eye(512)

    step = jax.jit(step, donate_argnums=0)
    for turn in range(30):
        less, product = step(jnp.full((512, 512), float(turn + rank)), 2.0)
        wanted = 2.0 * (turn * size + size * (size - 1) / 2)
        same(less, np.full((512, 512), wanted - 512))
        np.testing.assert_allclose(np.asarray(product), np.full((512, 512), wanted), rtol=1e-2)


def test_gradients():
    rank, size = hvd.rank(), hvd.size()
    x = jnp.arange(4.0) + rank
    both = jax.jit(jax.grad(lambda x: (hvd.allreduce(x, op=hvd.Sum) ** 2).sum()))(x)
    total = np.arange(4.0) * size + size * (size - 1) / 2
    same(both, 2 * size * total)
    # Only the root's values have had an effect.
    back = jax.jit(jax.grad(lambda x: (hvd.broadcast(x, 0) * (rank + 1.0)).sum()))(x)
    same(back, np.full(4, size * (size + 1) / 2 if rank == 0 else 0.0))
    # Through a barrier flows what came.
    same(jax.jit(lambda x: hvd.barrier(x) * 2)(x), 2 * np.asarray(x))


def test_training_in_a_loop():
    def loss(w, x, y):
        return ((x @ w - y) ** 2).mean()

    step = hvd.value_and_grad(loss)

    @jax.jit
    def train(w, x, y):
        def one(w, _):
            value, gradient = step(w, x, y)
            return w - 0.1 * gradient, value

        return jax.lax.scan(one, w, None, length=50)

    rng = np.random.default_rng(hvd.rank())
    x = jnp.asarray(rng.normal(size=(64, 3)), "float32")
    w, values = train(jnp.zeros(3), x, x @ jnp.asarray([1.0, -2.0, 3.0]))
    assert float(values[-1]) < 0.01 * float(values[0]), values
    everyones = hvd.allgather(w[None])
    for other in everyones:
        np.testing.assert_array_equal(np.asarray(other), np.asarray(w))


def test_outside_of_jit():
    same(hvd.allreduce(jnp.ones(5) * hvd.rank(), op=hvd.Sum), np.full(5, hvd.size() * (hvd.size() - 1) / 2))
    assert hvd.allgather(jnp.ones((hvd.rank() + 1, 2))).shape == (hvd.size() * (hvd.size() + 1) // 2, 2)


def test_ranks_that_disagree_are_told():
    shape = (3,) if hvd.rank() else (4,)
    told = ""
    try:
        jax.block_until_ready(jax.jit(lambda x: hvd.allreduce(x, name="differs"))(jnp.ones(shape)))
    except Exception as error:
        told = str(error)
    assert "ismatched" in told, told or "shapes differ, and nobody was told"
