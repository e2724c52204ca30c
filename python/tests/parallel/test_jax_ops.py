"""What is JAX's own about the operations: traces, derivatives, batches, loops, names, shapes."""

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import corro.jax as hvd
from corro import _native

MODES = pytest.mark.parametrize("mode", ["eager", "jit"])


def runs(mode, function, *args):
    return function(*args) if mode == "eager" else jax.jit(function)(*args)


def count(kind="allreduce"):
    """How many tensors of a kind this rank's engine has moved."""
    return int(re.search(rf'corro_tensors_total{{rank="\d+",kind="{kind}"}} (\d+)', _native.metrics())[1])


def names_in(function, *args):
    """What the collectives of a compiled function are called."""
    text = jax.jit(function).lower(*args).as_text()
    written = re.findall(r'call = "[^"]*;([^";]+)"', text)
    # Versions of JAX that spell the call out have it as a constant.
    for constant in re.findall(r'dense<(?:"0x([0-9A-F]+)"|\[([\d, ]+)\])> : tensor<\d+xui8>', text):
        code = bytes.fromhex(constant[0]) if constant[0] else bytes(map(int, constant[1].split(", ")))
        written.append(code.decode().split(";")[-1])
    return written


def same(result, wanted, **tolerance):
    np.testing.assert_allclose(
        np.asarray(result, np.float64), np.asarray(wanted, np.float64), **{"rtol": 1e-5, **tolerance}
    )


# --- values

DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16", "float32", "complex64"]


@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_of_every_dtype(mode, dtype):
    me, n = hvd.rank(), hvd.size()
    x = (jnp.arange(17) % 5 + me).astype(dtype)
    result = runs(mode, lambda x: hvd.allreduce(x, op=hvd.Sum, name=f"sum.{dtype}"), x)
    assert result.dtype == x.dtype
    same(result.real, sum(np.arange(17) % 5 + r for r in range(n)))


@MODES
def test_all_reductions(mode):
    me, n = hvd.rank(), hvd.size()
    x = jnp.array([me + 1.0, -me, 2.0])
    everyone = np.array([[r + 1.0, -r, 2.0] for r in range(n)])
    for op, wanted in (
        (hvd.Average, everyone.mean(0)),
        (hvd.Sum, everyone.sum(0)),
        (hvd.Min, everyone.min(0)),
        (hvd.Max, everyone.max(0)),
        (hvd.Product, everyone.prod(0)),
    ):
        same(runs(mode, lambda x, op=op: hvd.allreduce(x, op=op), x), wanted)
    scaled = runs(mode, lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25), x)
    same(scaled, everyone.sum(0) / 2)
    alike = runs(mode, lambda x: hvd.allreduce(x, op=hvd.Adasum), jnp.ones(3))
    same(alike, np.ones(3))


@MODES
def test_a_tree_travels_in_one_call(mode):
    me, n = hvd.rank(), hvd.size()
    tree = {"a": jnp.ones((2, 3)) * me, "b": [jnp.float32(me), (jnp.arange(4, dtype=jnp.int32),)], "c": None}
    result = runs(mode, lambda t: hvd.allreduce(t, op=hvd.Sum), tree)
    assert jax.tree_util.tree_structure(result) == jax.tree_util.tree_structure(tree)
    same(result["a"], np.full((2, 3), sum(range(n))))
    same(result["b"][1][0], np.arange(4) * n)
    assert names_in(lambda t: hvd.allreduce(t, name="tree"), tree) == ["grouped_allreduce.tree"]


@MODES
def test_broadcast(mode):
    root = hvd.size() - 1
    tree = {"x": jnp.arange(3.0) + hvd.rank(), "flag": jnp.array(hvd.rank() == root)}
    result = runs(mode, lambda t: hvd.broadcast(t, root), tree)
    same(result["x"], np.arange(3.0) + root)
    assert bool(result["flag"])


@MODES
def test_allgather_of_equal_rows(mode):
    me, n = hvd.rank(), hvd.size()
    result = runs(mode, hvd.allgather, jnp.full((2, 3), me, jnp.float32))
    same(result, np.repeat(np.arange(n), 2)[:, None] * np.ones(3))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "complex64", "bool"])
def test_allgather_of_unequal_rows(dtype):
    me, n = hvd.rank(), hvd.size()
    mine = jnp.full((me + 1, 2), me).astype(dtype)
    wanted = np.concatenate([np.full((r + 1, 2), r) for r in range(n)]).astype(bool if dtype == "bool" else float)
    for gather in (hvd.allgather, jax.jit(lambda x: hvd.allgather(x, rows=[r + 1 for r in range(n)]))):
        result = gather(mine)
        assert result.dtype == mine.dtype
        same(result.astype(jnp.float32) if dtype != "complex64" else result.real, wanted)


def test_a_clear_word_where_static_shapes_do_not_allow_it():
    if hvd.size() == 1:
        pytest.skip("one rank alone has no other rows")
    with pytest.raises(Exception, match="rows") as raised:
        jax.block_until_ready(jax.jit(hvd.allgather)(jnp.ones(1 + hvd.rank())))
    assert "rows=" in str(raised.value), raised.value
    with pytest.raises(ValueError, match="this rank brings"):
        jax.jit(lambda x: hvd.allgather(x, rows=[7] * hvd.size()))(jnp.ones(2))


@MODES
def test_alltoall(mode):
    me, n = hvd.rank(), hvd.size()
    result = runs(mode, hvd.alltoall, jnp.full((n * 2, 3), me, jnp.float32))
    same(result, np.repeat(np.arange(n), 2)[:, None] * np.ones(3))


def test_alltoall_with_splits():
    me, n = hvd.rank(), hvd.size()
    splits = [r + 1 for r in range(n)]
    x = jnp.full((sum(splits) + 1,), me, jnp.float32)
    rows, received = hvd.alltoall(x, splits=splits)
    wanted = np.repeat(np.arange(n), me + 1)
    same(rows, wanted)
    same(received, [me + 1] * n)
    rows, _ = jax.jit(lambda x: hvd.alltoall(x, splits=splits, received_splits=[me + 1] * n))(x)
    same(rows, wanted)
    with pytest.raises(ValueError, match="received_splits"):
        jax.jit(lambda x: hvd.alltoall(x, splits=splits))(x)


@MODES
def test_reducescatter(mode):
    me, n = hvd.rank(), hvd.size()
    x = jnp.arange(n * 2 + 1.0)
    parts = np.array_split(np.arange(n * 2 + 1.0) * n, [sum(3 if r == 0 else 2 for r in range(k)) for k in range(1, n)])
    same(runs(mode, lambda x: hvd.reducescatter(x, op=hvd.Sum), x), parts[me])
    same(runs(mode, hvd.reducescatter, x), parts[me] / n)
    pair = runs(mode, lambda x: hvd.grouped_reducescatter([x, jnp.ones((n, 2))], op=hvd.Sum), x)
    same(pair[0], parts[me])
    same(pair[1], np.full((1, 2), n))


def test_barrier_and_join():
    hvd.barrier()
    same(jax.jit(lambda x: hvd.barrier({"x": x})["x"] * 2)(jnp.ones(2)), [2, 2])
    with pytest.raises(ValueError, match=r"x = hvd\.barrier"):
        jax.jit(lambda x: (hvd.barrier(), x)[1])(jnp.ones(2))
    with pytest.raises(ValueError, match="cannot be compiled"):
        jax.jit(lambda x: x * hvd.join())(jnp.ones(2))
    assert hvd.join() in range(hvd.size())


def test_join_takes_part_in_compiled_averages():
    step = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name="joined"))
    for _ in range(hvd.rank() + 1):
        step(jnp.ones(2)).block_until_ready()
    assert hvd.join() in range(hvd.size())


def test_process_sets():
    if hvd.size() < 2:
        pytest.skip("one rank has no part of the ranks")
    first = hvd.add_process_set([0])
    rest = hvd.add_process_set(list(range(1, hvd.size())))
    mine = first if hvd.rank() == 0 else rest
    reduce = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=mine))
    same(reduce(jnp.ones(2)), [mine.size()] * 2)
    gathered = jax.jit(lambda x: hvd.allgather(x, process_set=mine))(jnp.array([hvd.rank()]))
    same(gathered, mine.ranks)
    hvd.barrier()
    hvd.remove_process_set(rest)
    with pytest.raises(ValueError, match="not been registered"):
        hvd.allreduce(jnp.ones(2), process_set=rest)
    hvd.remove_process_set(first)


# --- derivatives


def normal(seed, shape):
    """By numpy: JAX would compile each of its own for each shape, which takes longer than what is tested."""
    return np.random.default_rng(seed * 100 + hvd.rank()).normal(size=shape).astype(np.float32)


def adjoint(function, x, seed):
    """The sum over ranks of <c, J v>, and of <J' c, v>: equal if what flows back is the transpose."""
    v = normal(seed, x.shape)
    y, tangent = jax.jvp(function, (x,), (v,))
    c = normal(seed + 1, y.shape)
    (back,) = jax.vjp(function, x)[1](c)
    return hvd.allreduce(np.array([np.vdot(c, tangent), np.vdot(back, v)]), op=hvd.Sum)


def numerical(function, x, seed, step=1e-2):
    """The tangent by differences, with all ranks moving at once, and JAX's."""
    v, step = normal(seed, x.shape), np.float32(step)
    above, below = np.asarray(function(x + step * v)), np.asarray(function(x - step * v))
    return (above - below) / (2 * step), jax.jvp(function, (x,), (v,))[1]


def operations():
    me, n = hvd.rank(), hvd.size()
    rows = [r + 1 for r in range(n)]
    return {
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), (3, 2)),
        "average": (hvd.allreduce, (3, 2)),
        "scaled": (lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), (3,)),
        "min": (lambda x: hvd.allreduce(x, op=hvd.Min), (4,)),
        "max": (lambda x: hvd.allreduce(x, op=hvd.Max), (4,)),
        "product": (lambda x: hvd.allreduce(x, op=hvd.Product), (4,)),
        "broadcast": (lambda x: hvd.broadcast(x, n - 1), (3, 2)),
        "allgather": (lambda x: hvd.allgather(x, rows=[2] * n), (2, 3)),
        "allgather of unequal rows": (lambda x: hvd.allgather(x, rows=rows), (me + 1, 2)),
        "reducescatter": (hvd.reducescatter, (2 * n + 1, 2)),
        "reducescatter sum": (lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=2.0), (2 * n, 2)),
        "alltoall": (lambda x: hvd.alltoall(x, received_splits=[2] * n), (2 * n, 2)),
        "alltoall with splits": (
            lambda x: hvd.alltoall(x, splits=rows, received_splits=[me + 1] * n)[0],
            (sum(rows) + 1, 2),
        ),
        "barrier": (hvd.barrier, (3,)),
    }


OPERATIONS = [
    *("sum", "average", "scaled", "min", "max", "product", "broadcast", "allgather", "allgather of unequal rows"),
    *("reducescatter", "reducescatter sum", "alltoall", "alltoall with splits", "barrier"),
]


@MODES
@pytest.mark.parametrize("name", OPERATIONS)
def test_derivatives(mode, name):
    function, shape = operations()[name]
    assert [*operations()] == OPERATIONS
    if mode == "jit":
        function = jax.jit(function)
    x = normal(7, shape) + np.float32(2.0 * (name == "product"))
    same(*numerical(function, x, 1), rtol=0.05, atol=2e-2)
    same(*adjoint(function, x, 2), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_gradients_by_jax_itself_to_second_order(op):
    # With the same values on all ranks what is true for all of them is true for each.
    function = jax.jit(lambda x: jnp.sin(hvd.allreduce(jnp.cos(x), op=op)))
    check_grads(function, (jnp.linspace(0.1, 0.7, 4),), order=2, modes=["fwd", "rev"], rtol=0.05, atol=0.05)


def test_a_product_with_zeros_has_the_right_derivative():
    me = hvd.rank()
    x = jnp.array([2.0, 0.0 if me == 0 else 3.0, 0.0])
    _, tangent = jax.jvp(lambda x: hvd.allreduce(x, op=hvd.Product), (x,), (jnp.ones(3),))
    n = hvd.size()
    same(tangent, [n * 2.0 ** (n - 1), 3.0 ** (n - 1), 1.0 if n == 1 else 0.0])


def test_integers_in_a_tree_have_no_gradient():
    def loss(w, k):
        reduced = hvd.allreduce({"w": w, "k": k}, op=hvd.Sum)
        return (reduced["w"] * reduced["k"]).sum()

    n = hvd.size()
    same(jax.jit(jax.grad(loss))(jnp.ones(2), jnp.array([1, 2])), [1 * n * n, 2 * n * n])
    with pytest.raises(NotImplementedError, match="Adasum"):
        jax.grad(lambda x: hvd.allreduce(x, op=hvd.Adasum).sum())(jnp.ones(2))


# --- transformations


@MODES
def test_vmap(mode):
    me, n = hvd.rank(), hvd.size()
    batch = jnp.arange(24.0).reshape(2, 3, 4) + me
    total = np.arange(24.0).reshape(2, 3, 4) * n + sum(range(n))
    before = count()
    same(runs(mode, jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Sum)), batch), total)
    assert count() - before == 1
    same(
        runs(mode, jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Sum), in_axes=2, out_axes=1), batch),
        np.moveaxis(total, 2, 1),
    )
    gathered = jax.jit(jax.vmap(hvd.allgather, in_axes=1))(batch)
    wanted = np.concatenate([np.moveaxis(np.arange(24.0).reshape(2, 3, 4) + r, 1, 0) for r in range(n)], axis=1)
    same(gathered, wanted)
    pair = jax.vmap(lambda x, y: hvd.allreduce((x, y), op=hvd.Sum), in_axes=(0, None))(batch, jnp.ones(2))
    same(pair[1][0], [n, n])
    per_example = jax.jit(jax.vmap(jax.grad(lambda x: (hvd.allreduce(x, op=hvd.Sum) ** 2).sum())))(batch)
    same(per_example, 2 * n * total)


def test_scan_and_loops_and_conditions():
    n = hvd.size()

    def step(carry, x):
        total = hvd.allreduce(x, op=hvd.Sum)
        return carry + total, total

    carry, totals = jax.jit(lambda xs: lax.scan(step, jnp.zeros(2), xs))(jnp.arange(10.0).reshape(5, 2))
    same(totals, np.arange(10.0).reshape(5, 2) * n)
    same(carry, np.arange(10.0).reshape(5, 2).sum(0) * n)
    gradient = jax.jit(jax.grad(lambda xs: (lax.scan(step, jnp.zeros(2), xs)[0] ** 2).sum()))
    same(gradient(jnp.ones((5, 2))), np.full((5, 2), 2 * 5 * n * n))
    loop = jax.jit(lambda x: lax.fori_loop(0, 4, lambda i, x: hvd.allreduce(x), x))
    same(loop(jnp.ones(3)), np.ones(3))
    either = jax.jit(lambda p, x: lax.cond(p, lambda x: hvd.allreduce(x, op=hvd.Sum), lambda x: x, x))
    same(either(True, jnp.ones(2)), [n, n])
    same(either(False, jnp.ones(2)), [1, 1])


def test_remat_and_custom_derivatives():
    n = hvd.size()

    @jax.checkpoint
    def layer(x):
        return jnp.sin(hvd.allreduce(x, op=hvd.Sum))

    x = jnp.full((3,), 0.1)
    got = jax.jit(jax.grad(lambda x: layer(layer(x)).sum()))(x)
    plain = lambda x: jnp.sin(hvd.allreduce(x, op=hvd.Sum))  # noqa: E731
    same(got, jax.grad(lambda x: plain(plain(x)).sum())(x))

    @jax.custom_vjp
    def doubled(x):
        return hvd.allreduce(x, op=hvd.Sum)

    doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (2 * hvd.allreduce(g, op=hvd.Sum),))
    same(jax.jit(jax.grad(lambda x: doubled(x).sum()))(x), np.full(3, 2 * n))


def test_donated_arguments():
    step = jax.jit(lambda x: x + hvd.allreduce(jnp.ones_like(x)), donate_argnums=0)
    x = jnp.zeros(1000)
    for _ in range(5):
        x = step(x)
    same(x, np.full(1000, 5))


# --- names and order


def test_each_use_has_a_name_of_its_own():
    inner = jax.jit(lambda x: hvd.allreduce(x * 2))
    kept = jax.checkpoint(lambda x: hvd.allreduce(x, name="kept"))

    def body(c, x):
        return c + hvd.allreduce(x, name="loop"), inner(x)

    def program(x, y):
        both = inner(x) + inner(y)
        nested = jax.jit(lambda z: inner(z) + inner(-z))
        loops = [lax.scan(body, x, jnp.stack([x, y])), lax.scan(body, y, jnp.stack([y, x]))]
        looped = sum(carry + ys.sum() for carry, ys in loops)
        return both + nested(x) + nested(y) + looped + kept(x) + kept(y) + lax.cond(x[0] > 0, inner, lambda z: z, x)

    names = names_in(program, jnp.ones(2), jnp.ones(2))
    assert len(names) == 2 + 4 + 4 + 2 + 1
    assert len(set(names)) == len(names), names
    assert {"allreduce.loop", "allreduce.loop.1", "allreduce.kept", "allreduce.kept.1"} <= set(names)
    # No function that holds a collective, or calls one that does, is called from two places.
    text = jax.jit(program).lower(jnp.ones(2), jnp.ones(2)).as_text()
    functions = {re.search(r"@(\S+?)\(", part)[1]: part for part in text.split("func.func ")[1:]}
    calls = {name: re.findall(r"(?<!custom_)call @(\S+?)\(", part) for name, part in functions.items()}
    assert any(calls.values())

    def holds(name):
        return "corro_collective" in functions[name] or any(holds(called) for called in calls[name])

    called = [name for names in calls.values() for name in names if holds(name)]
    assert called
    assert len(set(called)) == len(called), called


def test_independent_calls_of_one_function_do_not_mix():
    inner = jax.jit(lambda x: hvd.allreduce(jnp.sin(x) * 0 + x, op=hvd.Sum))
    n = hvd.size()

    @jax.jit
    def many(xs):
        return [inner(x) for x in xs]

    xs = [jnp.full((20_000,), float(i)) for i in range(12)]
    for _ in range(10):
        for i, result in enumerate(many(xs)):
            same(result, np.full(20_000, i * n))


def test_calls_run_every_time_and_are_not_merged():
    constants = jax.jit(lambda: hvd.allreduce(jnp.ones(2), op=hvd.Sum) + hvd.allreduce(jnp.ones(2), op=hvd.Sum))
    constants()
    before = count()
    for _ in range(3):
        same(constants(), [2 * hvd.size()] * 2)
    assert count() - before == 6


def test_many_calls_in_flight_are_in_order():
    step = jax.jit(lambda x, i: hvd.allreduce(x, op=hvd.Sum) * 0 + hvd.allreduce(i, op=hvd.Sum))
    xs = jnp.ones(50_000)
    results = [step(xs, jnp.float32(i)) for i in range(60)]
    for i, result in enumerate(results):
        same(result[0], i * hvd.size())


def test_a_function_compiled_for_other_shapes_on_one_rank():
    # What one rank compiles more than the others does not bring its names out of line.
    step = jax.jit(lambda x: hvd.allreduce(x.sum(), op=hvd.Sum))
    if hvd.rank() == 0:
        step.lower(jnp.ones(5)).compile()
    same(step(jnp.ones(3 + hvd.rank())), sum(3 + r for r in range(hvd.size())))
    other = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    same(other(jnp.ones(2)), [hvd.size()] * 2)


def test_ranks_that_run_different_programs_are_told():
    if hvd.size() == 1:
        pytest.skip("one rank alone agrees with itself")
    shape = 3 + (hvd.rank() == 1)
    with pytest.raises(Exception, match="Mismatched ALLREDUCE tensor shapes") as raised:
        jax.block_until_ready(jax.jit(lambda x: hvd.allreduce(x, name="different"))(jnp.ones(shape)))
    assert "rank" in str(raised.value)
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
        hvd.allreduce(jnp.ones(shape), name="different, eagerly")


def test_the_next_call_after_a_failure_works():
    if hvd.size() == 1:
        pytest.skip("one rank alone agrees with itself")
    bad = jax.jit(lambda x: hvd.allreduce(x, name="bad"))
    with pytest.raises(Exception, match="Mismatched"):
        jax.block_until_ready(bad(jnp.ones(2 + hvd.rank())))
    same(bad(jnp.ones(2)), [1, 1])


# --- devices


def test_several_devices_of_this_process():
    if jax.local_device_count() < 2:
        assert hvd.size() != 2, "jobs of two ranks have two devices"
        pytest.skip("one device")
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    n, devices = hvd.size(), jax.local_device_count()
    mesh = Mesh(np.array(jax.local_devices()), ("d",))
    sharded = jax.device_put(jnp.arange(8.0 * devices) + hvd.rank(), NamedSharding(mesh, PartitionSpec("d")))
    whole = np.arange(8.0 * devices) * n + sum(range(n))
    before = count()
    for _ in range(5):
        same(jax.jit(lambda x: hvd.allreduce(x * 1, op=hvd.Sum))(sharded), whole)
    assert count() - before == 5
    mean = jax.jit(jax.grad(lambda w, x: ((x * w) ** 2).mean()))
    gradient = jax.jit(lambda w, x: hvd.allreduce(mean(w, x)))(jnp.float32(1.0), sharded)
    everyone = np.concatenate([np.arange(8.0 * devices) + r for r in range(n)])
    same(gradient, (2 * everyone**2).mean())
    try:
        from jax import shard_map
    except ImportError:
        from jax.experimental.shard_map import shard_map

    manual = shard_map(
        lambda x: hvd.allreduce(lax.psum(x.sum(), "d"), op=hvd.Sum),
        mesh=mesh,
        in_specs=PartitionSpec("d"),
        out_specs=PartitionSpec(),
    )
    for _ in range(5):
        same(jax.jit(manual)(sharded), everyone.sum())
    if hasattr(jax, "shard_map"):
        varying = shard_map(hvd.allreduce, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
        with pytest.raises(ValueError, match=r"jax\.lax\.psum"):
            jax.jit(varying)(sharded)


def test_two_threads_with_programs_of_their_own():
    n = hvd.size()
    results = {}

    def work(name):
        step = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name=name))
        results[name] = [float(step(jnp.full((3,), float(i)))[0]) for i in range(50)]

    threads = [threading.Thread(target=work, args=(f"thread{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(values == [float(i * n) for i in range(50)] for values in results.values())
