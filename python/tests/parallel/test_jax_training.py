"""Training with JAX: gradients, optimizers, parameters from one rank, metrics, data, states."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import corro.jax as hvd


def same(result, wanted, **tolerance):
    np.testing.assert_allclose(
        np.asarray(result, np.float64), np.asarray(wanted, np.float64), **{"rtol": 1e-5, **tolerance}
    )


def whole_data():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(8 * hvd.size(), 3)).astype(np.float32)
    return x, (x @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)


def mine(array):
    return array[8 * hvd.rank() : 8 * hvd.rank() + 8]


def loss(params, x, y):
    return ((x @ params["w"] + params["b"] - y) ** 2).mean()


def start():
    return {"w": jnp.zeros(3), "b": jnp.zeros(())}


def trained_alone(optimizer, steps=5):
    """What one process makes of all data."""
    x, y = whole_data()
    params = start()
    state = optimizer.init(params)
    for _ in range(steps):
        updates, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
        params = optax.apply_updates(params, updates)
    return params


def test_value_and_grad_is_that_of_all_data():
    x, y = whole_data()
    params = {"w": jnp.ones(3), "b": jnp.ones(())}
    wanted = jax.grad(loss)(params, x, y)
    for transform in (lambda f: f, jax.jit):
        value, gradients = transform(hvd.value_and_grad(loss))(params, mine(x), mine(y))
        same(value, loss(params, mine(x), mine(y)))
        same(gradients["w"], wanted["w"], rtol=1e-4)
        value, gradients = transform(hvd.value_and_grad(loss, average_value=True))(params, mine(x), mine(y))
        same(value, loss(params, x, y), rtol=1e-4)
        same(gradients["b"], wanted["b"], rtol=1e-4)
        same(transform(hvd.grad(loss))(params, mine(x), mine(y))["w"], wanted["w"], rtol=1e-4)
    with_aux = lambda p, x, y: (loss(p, x, y), {"n": 7})  # noqa: E731
    (value, aux), gradients = jax.jit(hvd.value_and_grad(with_aux, has_aux=True, average_value=True))(
        params, mine(x), mine(y)
    )
    same(value, loss(params, x, y), rtol=1e-4)
    assert aux["n"] == 7
    gradients, aux = hvd.grad(with_aux, has_aux=True)(params, mine(x), mine(y))
    same(gradients["w"], wanted["w"], rtol=1e-4)
    both = hvd.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(jnp.ones(2), jnp.full((2,), float(hvd.rank())))
    same(both[0], np.full(2, np.mean(range(hvd.size()))))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"groups": [["['w']"]]},
        {"gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.bf16},
        {"compression": hvd.Compression.fp16},
    ],
    ids=str,
)
def test_an_optimizer_does_what_one_process_would(options):
    x, y = whole_data()
    optimizer = hvd.DistributedOptimizer(optax.adam(0.1), **options)

    @jax.jit
    def step(params, state, x, y):
        gradients = jax.grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    params = start()
    state = optimizer.init(params)
    for _ in range(5):
        params, state = step(params, state, mine(x), mine(y))
    wanted = trained_alone(optax.adam(0.1))
    tolerance = {"atol": 0.02} if "compression" in options else {"rtol": 1e-3, "atol": 1e-5}
    same(params["w"], wanted["w"], **tolerance)
    everyone = hvd.allgather_object(np.asarray(params["w"]).tolist())
    assert everyone == [everyone[0]] * hvd.size()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_several_passes_make_one_step(average, compiled):
    me, n = hvd.rank(), hvd.size()
    optimizer = hvd.DistributedOptimizer(
        optax.sgd(1.0),
        name=f"passes{average}{compiled}",
        backward_passes_per_step=3,
        average_aggregated_gradients=average,
    )
    update = jax.jit(optimizer.update) if compiled else optimizer.update
    params = {"w": jnp.zeros(2)}
    state = optimizer.init(params)
    for i in range(6):
        updates, state = update({"w": jnp.full((2,), float(i + me))}, state, params)
        if i % 3 != 2:
            same(updates["w"], [0, 0])
        else:
            total = sum(range(i - 2, i + 1)) + 3 * np.mean(range(n))
            same(updates["w"], [-(total / 3 if average else total)] * 2)
    assert int(state.passes) == 0


def test_adasum_combines_steps():
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.5), op=hvd.Adasum)
    updates, _ = optimizer.update({"w": jnp.array([2.0, 0.0])}, optimizer.init({"w": jnp.zeros(2)}))
    same(updates["w"], [-1.0, 0.0])


def test_what_does_not_go_together_is_refused():
    for options in ({"backward_passes_per_step": 0}, {"groups": 0}, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}):
        with pytest.raises(ValueError):  # noqa: PT011 - three texts
            hvd.DistributedOptimizer(optax.sgd(1.0), **options)
    with pytest.raises(ValueError, match="leaves are"):
        hvd.grad(lambda p: p["w"].sum(), groups=[["w"]])({"w": jnp.ones(2)})
    with pytest.raises(TypeError, match="bfloat16"):
        hvd.allreduce(jnp.ones(2).astype(jnp.float8_e4m3fn))


def test_parameters_from_the_root():
    root = hvd.size() - 1
    key = jax.random.key(hvd.rank())
    params = {
        "w": jnp.full((2, 2), hvd.rank()),
        "f": jax.nn.relu,
        "key": key,
        "none": None,
        "n": np.arange(3) * hvd.rank(),
    }
    got = hvd.broadcast_parameters(params, root_rank=root)
    same(got["w"], np.full((2, 2), root))
    same(got["n"], np.arange(3) * root)
    assert got["f"] is jax.nn.relu
    same(jax.random.key_data(got["key"]), jax.random.key_data(jax.random.key(root)))
    optimizer = optax.adam(0.1)
    state = optimizer.init({"w": jnp.ones(2)})
    _, state = optimizer.update({"w": jnp.full((2,), 1.0 + hvd.rank())}, state)
    state = hvd.broadcast_optimizer_state(state, root)
    same(state[0].mu["w"], np.full(2, 0.1 * (1.0 + root)))


def test_metrics():
    n = hvd.size()
    got = hvd.average_metrics({"loss": 2.0 * hvd.rank(), "seen": hvd.rank()})
    same(got["loss"], np.mean([2.0 * r for r in range(n)]))
    same(got["seen"], np.mean(range(n)))


def test_data_is_dealt_out():
    n = hvd.size()
    parts = hvd.allgather_object(list(hvd.data.shard(range(4 * n + n - 1))))
    assert sorted(i for part in parts for i in part) == list(range(4 * n))
    assert len({len(part) for part in parts}) == 1
    first, second = (hvd.allgather_object(list(hvd.data.indices(4 * n, epoch))) for epoch in (0, 1))
    assert first != second or n == 1
    for parts in (first, second):
        assert sorted(i for part in parts for i in part) == list(range(4 * n))


def test_a_state_survives_donation_and_comes_from_the_root():
    key = jax.random.key(hvd.rank())
    state = hvd.elastic.JaxState(params={"w": jnp.full((3,), float(hvd.rank()))}, key=key, epoch=hvd.rank(), label="a")
    state.sync()
    same(state.params["w"], np.zeros(3))
    same(jax.random.key_data(state.key), jax.random.key_data(jax.random.key(0)))
    assert state.epoch == 0
    step = jax.jit(lambda p: {"w": p["w"] + 1}, donate_argnums=0)
    state.params = step(state.params)
    state.epoch += 1
    state.commit()
    state.params = step(step(state.params))
    state.epoch += 1
    state.restore()
    same(state.params["w"], np.ones(3))
    assert state.epoch == 1
    # What was restored may be donated as well, and restored again.
    state.params = step(state.params)
    state.restore()
    same(state.params["w"], np.ones(3))


def test_flax_linen_and_nnx():
    from flax import linen, nnx

    x, y = whole_data()
    model = linen.Dense(1)
    params = hvd.broadcast_parameters(model.init(jax.random.key(hvd.rank()), x[:1]))
    _, gradients = jax.jit(hvd.value_and_grad(lambda p, x: model.apply(p, x).mean()))(params, mine(x))
    same(gradients["params"]["kernel"][:, 0], x.mean(0), rtol=1e-3, atol=1e-5)

    network = nnx.Linear(3, 1, rngs=nnx.Rngs(hvd.rank()))
    nnx.update(network, hvd.broadcast_parameters(nnx.state(network)))
    tx = hvd.DistributedOptimizer(optax.sgd(0.1), name="nnx")
    optimizer = nnx.Optimizer(network, tx, wrt=nnx.Param)

    @nnx.jit
    def step(network, optimizer, x, y):
        value, gradients = nnx.value_and_grad(lambda m: ((m(x)[:, 0] - y) ** 2).mean())(network)
        try:
            optimizer.update(network, gradients)
        except TypeError:  # before Flax 0.11
            optimizer.update(gradients)
        return value

    values = [float(hvd.average_metrics(step(network, optimizer, mine(x), mine(y)))) for _ in range(20)]
    assert values[-1] < values[0] / 5
    kernels = hvd.allgather_object(
        np.asarray(network.kernel[...] if hasattr(network.kernel, "__getitem__") else network.kernel.value).tolist()
    )
    assert kernels == [kernels[0]] * hvd.size()


def test_equinox():
    eqx = pytest.importorskip("equinox")
    x, y = whole_data()
    model = eqx.nn.MLP(3, "scalar", 8, 1, key=jax.random.key(hvd.rank()))
    model = hvd.broadcast_parameters(model)
    optimizer = hvd.DistributedOptimizer(optax.adam(0.01), name="equinox")
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state, x, y):
        value, gradients = eqx.filter_value_and_grad(lambda m: ((jax.vmap(m)(x) - y) ** 2).mean())(model)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state, value

    values = []
    for _ in range(40):
        model, state, value = step(model, state, mine(x), mine(y))
        values.append(float(hvd.average_metrics(value)))
    assert values[-1] < values[0] / 2
    weights = hvd.allgather_object(np.asarray(model.layers[0].weight).tolist())
    assert weights == [weights[0]] * hvd.size()


def test_haiku():
    hk = pytest.importorskip("haiku")
    x, y = whole_data()
    network = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([8, 1])(x)[:, 0]))
    params = hvd.broadcast_parameters(network.init(jax.random.key(hvd.rank()), x[:1]))
    optimizer = hvd.DistributedOptimizer(optax.adam(0.01), name="haiku")
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x, y):
        value, gradients = jax.value_and_grad(lambda p: ((network.apply(p, x) - y) ** 2).mean())(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    values = []
    for _ in range(40):
        params, state, value = step(params, state, mine(x), mine(y))
        values.append(float(hvd.average_metrics(value)))
    assert values[-1] < values[0] / 2
    weights = hvd.allgather_object([np.asarray(leaf).tolist() for leaf in jax.tree.leaves(params)])
    assert weights == [weights[0]] * hvd.size()


def test_grain_gives_each_rank_its_own_part():
    grain = pytest.importorskip("grain.python")
    n = hvd.size()
    sampler = grain.IndexSampler(4 * n + 1, shard_options=hvd.data.shard_options(), shuffle=True, seed=3, num_epochs=1)
    loader = grain.DataLoader(data_source=range(4 * n + 1), sampler=sampler, worker_count=0)
    parts = hvd.allgather_object([int(element) for element in loader])
    assert [len(part) for part in parts] == [4] * n
    assert len({element for part in parts for element in part}) == 4 * n
