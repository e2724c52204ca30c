"""Tapes, optimizers, aggregation, batch normalisation, variables and states of TensorFlow."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import corro.tensorflow as hvd
from corro.tensorflow._reduction import Reduction

v1 = tf.compat.v1
MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


def mean_of(make):
    return np.mean([make(rank) for rank in range(hvd.size())], axis=0)


def gradients_of(mode, tape_options, variables, loss, **options):
    """The gradients that a distributed tape gives."""

    def compute():
        with tf.GradientTape() as tape:
            value = loss()
        tape = hvd.DistributedGradientTape(tape, **tape_options)
        return tape.gradient(value, variables, **options)

    return compute() if mode == "eager" else tf.function(compute)()


@MODES
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": hvd.Compression.fp16},
        {"gradient_predivide_factor": 2.0},
        {"groups": 2},
        {"groups": "both"},
        {"use_generic_names": True},
    ],
    ids=str,
)
def test_a_tape_gives_the_mean_of_all_ranks(mode, options):
    options = dict(options)
    me = hvd.rank()
    a, b, unused = tf.Variable([1.0, 2.0]), tf.Variable(3.0), tf.Variable(1.0)
    if options.get("groups") == "both":
        options["groups"] = [[a, b]]
    names = {"use_generic_names": options.pop("use_generic_names", False)}
    of_a, of_b, nothing = gradients_of(
        mode, options, [a, b, unused], lambda: tf.reduce_sum(a * (me + 1.0)) * b, **names
    )
    np.testing.assert_allclose(of_a, mean_of(lambda rank: [3.0 * (rank + 1)] * 2))
    np.testing.assert_allclose(of_b, mean_of(lambda rank: 3.0 * (rank + 1)))
    assert nothing is None


@MODES
def test_gradients_of_a_tape_are_final(mode):
    """Clipped by their global norm as soon as they are there, they are the same on all ranks, and the right ones."""
    shapes = [(7, 3), (3,), (128, 64), ()]
    starts = [np.ones(shape, "float32") for shape in shapes]
    variables = [tf.Variable(start) for start in starts]

    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * v) * factor for v in variables])
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
        for variable, gradient in zip(variables, clipped, strict=True):
            variable.assign_sub(gradient)
        return norm

    step = step if mode == "eager" else tf.function(step)
    for number in range(5):
        own = [2.0 * v.numpy() for v in variables]
        norm = float(step(tf.constant(hvd.rank() + 1.0 + number)))
        together = np.sqrt(sum((g**2).sum() for g in own)) * mean_of(lambda rank, number=number: rank + 1.0 + number)
        np.testing.assert_allclose(norm, together, rtol=1e-5)
    everyone = hvd.allgather_object([v.numpy().tobytes() for v in variables])
    assert everyone == [everyone[0]] * hvd.size()


def test_generic_names_of_slices_ignore_scopes():
    table = tf.Variable(tf.ones([hvd.size(), 2]))

    @tf.function
    def compute():
        with tf.name_scope(f"rank{hvd.rank()}"):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(tf.gather(table, [hvd.rank()]))
            tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
            return tf.convert_to_tensor(tape.gradient(value, [table], use_generic_names=True)[0])

    np.testing.assert_allclose(compute(), np.ones([hvd.size(), 2]))


def test_groups_tell_variables_of_keras_apart():
    """Keras 3 calls the kernels of all layers "kernel"."""
    layers = [tf.keras.layers.Dense(1, name=f"layer{i}") for i in range(3)]
    for layer in layers:
        layer.build([None, 2])
    kernels = [layer.kernel for layer in layers]
    reduction = Reduction(groups=[kernels[:2], kernels[2:]])
    assert reduction._groups([0, 1, 2], kernels, [tf.zeros([2, 1])] * 3) == [[0, 1], [2]]


@MODES
def test_a_tape_with_sum_and_dtypes_that_differ(mode):
    a, b = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0], dtype=tf.float64)
    of_a, of_b = gradients_of(
        mode, {"op": hvd.Sum}, [a, b], lambda: tf.reduce_sum(a) + tf.cast(tf.reduce_sum(2.0 * b), tf.float32)
    )
    np.testing.assert_allclose(of_a, [hvd.size()] * 2)
    np.testing.assert_allclose(of_b, [2.0 * hvd.size()] * 2)
    assert of_b.dtype == tf.float64


@MODES
@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_a_tape_over_an_embedding(mode, sparse_as_dense):
    table = tf.Variable(tf.ones([hvd.size() + 1, 2]))
    (gradient,) = gradients_of(
        mode, {"sparse_as_dense": sparse_as_dense}, [table], lambda: tf.reduce_sum(tf.gather(table, [hvd.rank()]))
    )
    wanted = np.full((hvd.size() + 1, 2), 1 / hvd.size())
    wanted[-1] = 0
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), wanted)
    assert isinstance(gradient, tf.IndexedSlices) == (not sparse_as_dense or hvd.size() == 1)


def test_a_tape_may_be_wrapped_while_it_records_and_be_persistent():
    x = tf.Variable(2.0)
    with tf.GradientTape(persistent=True) as tape:
        tape = hvd.DistributedGradientTape(tape)  # noqa: PLW2901 - as users write it
        y = x * (hvd.rank() + 1.0)
        z = y * y
    assert type(tape).__name__ == "GradientTape"
    assert isinstance(tape, tf.GradientTape)
    np.testing.assert_allclose(tape.gradient(y, [x])[0], (hvd.size() + 1) / 2)
    np.testing.assert_allclose(tape.gradient(z, [x])[0], mean_of(lambda rank: 2 * 2.0 * (rank + 1) ** 2), rtol=1e-6)


@pytest.mark.parametrize("scale", [True, False])
def test_local_sources_are_not_reduced(scale):
    size, me = hvd.size(), hvd.rank()
    layer, other = tf.keras.layers.Dense(1), tf.keras.layers.Dense(1)
    x = tf.fill([1, 2], me + 1.0)
    layer.build([None, 2])
    other.build([None, 2])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x) + other(x))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=layer, scale_local_gradients=scale)
    weights = [layer.trainable_weights[0], other.trainable_weights[0]]
    mine, shared = tape.gradient(loss, weights)
    np.testing.assert_allclose(mine, np.full([2, 1], (me + 1.0) / (size if scale else 1)))
    np.testing.assert_allclose(shared, np.full([2, 1], (size + 1) / 2))
    with pytest.raises(ValueError, match="Layer"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=["no layer"])

    variable, shared = tf.Variable([1.0]), tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((variable + shared) * (me + 1.0))
    tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
    tape.register_local_source(variable)
    local, reduced = tape.get_local_and_global_gradients(loss, [variable, shared])
    np.testing.assert_allclose(local[0][1], [(me + 1.0) / (size if scale else 1)])
    np.testing.assert_allclose(reduced[0][1], [(size + 1) / 2])


def test_wrong_options():
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedGradientTape(tf.GradientTape(), gradient_predivide_factor=2.0, op=hvd.Sum)
    for groups in (0, -1, "x", [1, 2]):
        with pytest.raises(ValueError, match="groups"):
            hvd.DistributedGradientTape(tf.GradientTape(), groups=groups)
    sgd = v1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        hvd.DistributedOptimizer(sgd, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="backward_passes_per_step > 1"):
        hvd.DistributedOptimizer(sgd, backward_passes_per_step=2)
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="optimizer"):
        hvd.DistributedOptimizer(object())


def test_an_optimizer_of_tensorflow_1_in_a_session():
    with tf.Graph().as_default():
        x = v1.get_variable("x", initializer=[1.0 + hvd.rank(), 2.0], use_resource=True)
        loss = tf.reduce_sum(x * (hvd.rank() + 1.0))
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
        assert optimizer.get_name() == "DistributedMomentumOptimizer"
        train = optimizer.minimize(loss)
        assert optimizer.get_slot_names() == ["momentum"]
        hook = hvd.BroadcastGlobalVariablesHook(0)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            np.testing.assert_allclose(session.run(x), [1.0, 2.0])
            session.run(train)
            step = 0.1 * (hvd.size() + 1) / 2
            np.testing.assert_allclose(session.run(x), [1.0 - step, 2.0 - step], rtol=1e-6)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
def test_backward_passes_in_a_session(average, by_name):
    passes = 3
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("x", initializer=[1.0], use_resource=True)
        feed = v1.placeholder(tf.float32, [])
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            backward_passes_per_step=passes,
            average_aggregated_gradients=average,
        )
        gradients = optimizer.compute_gradients(tf.reduce_sum(x * feed))
        if by_name:
            train = optimizer.apply_gradients(gradients, global_step=step)
        else:
            train = optimizer.apply_gradients(gradients, step)
        session.run(v1.global_variables_initializer())
        wanted, total = 1.0, 0.0
        for i in range(6):
            session.run(train, {feed: float(i + hvd.rank())})
            total += i + (hvd.size() - 1) / 2
            if (i + 1) % passes == 0:
                wanted -= total / (passes if average else 1)
                total = 0.0
            np.testing.assert_allclose(session.run(x), [wanted], rtol=1e-6)
            assert session.run(step) == i + 1


def test_backward_passes_in_a_scope_that_reuses_variables():
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("model"):
            v1.get_variable("x", initializer=[[1.0, 1.0]] * 3)
        rows = v1.placeholder(tf.int32, None)
        with v1.variable_scope("model", reuse=True):
            x = v1.get_variable("x")
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2, sparse_as_dense=True
            )
            gradients = [
                # Neither the slices nor the shape are known before the graph runs.
                (tf.IndexedSlices(g.values, g.indices, v1.placeholder_with_default(g.dense_shape, None)), v)
                for g, v in v1.train.GradientDescentOptimizer(1.0).compute_gradients(tf.reduce_sum(tf.gather(x, rows)))
            ]
            optimizer._optimizer.compute_gradients = lambda: gradients
            train = optimizer.apply_gradients(optimizer.compute_gradients())
        session.run(v1.global_variables_initializer())
        for _ in range(2):
            session.run(train, {rows: [1]})
        np.testing.assert_allclose(session.run(x), [[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0]])


@MODES
def test_aggregation_by_hand(mode):
    calls = []

    def reduce(gradients, variables):
        calls.append(len(variables))
        return [hvd.allreduce(gradient, op=hvd.Sum, name="aggregated") for gradient in gradients]

    helper = hvd.LocalGradientAggregationHelperEager(2, reduce)
    x = tf.Variable([1.0])
    step = (lambda g: helper.compute_gradients([g, None], [x, x])[0]) if mode == "eager" else None
    if mode == "graph":
        step = tf.function(lambda g: helper.compute_gradients([g, None], [x, x])[0])
    results = [float(step(tf.constant([value]))[0]) for value in (1.0, 2.0, 5.0, 7.0)]
    assert results == [1.0, 3.0 * hvd.size(), 5.0, 12.0 * hvd.size()]
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), dense_shape=tf.constant([3, 2]))
    with pytest.raises(ValueError, match="IndexedSlices"):
        hvd.LocalGradientAggregationHelper(2, reduce).compute_gradients([slices], [x])
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        hvd.LocalGradientAggregationHelper(0, reduce)


def test_adasum_of_tensorflow_1_combines_what_the_steps_changed():
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("x", initializer=[4.0, 5.0], use_resource=True)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
        assert optimizer.get_name() == "DistributedDeltaGradientDescentOptimizer"
        train = optimizer.minimize(tf.reduce_sum(x * tf.constant([1.0, 2.0])))
        session.run(v1.global_variables_initializer())
        session.run(train)
        # All ranks take the same step, and Adasum of equal vectors is that vector.
        np.testing.assert_allclose(session.run(x), [3.0, 3.0], rtol=1e-5)


@MODES
@pytest.mark.parametrize("inplace", [False, True])
def test_variables_from_root(mode, inplace):
    root = hvd.size() - 1
    variables = [tf.Variable([float(hvd.rank()), 1.0]), tf.Variable(hvd.rank()), tf.Variable(hvd.rank() == root)]
    if mode == "eager":
        hvd.broadcast_variables(variables, root, inplace=inplace)
    else:

        @tf.function
        def broadcast():
            hvd.broadcast_variables(variables, root, inplace=inplace)

        broadcast()
    assert variables[0].numpy().tolist() == [root, 1.0]
    assert int(variables[1]) == root
    assert bool(variables[2])
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)


def test_keras_variables_from_root():
    model = tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(2)])
    hvd.broadcast_variables(model.variables, 0)
    mine = [value.tolist() for value in model.get_weights()]
    assert hvd.allgather_object(mine) == [mine] * hvd.size()
    hvd.broadcast_(model.variables, 0)


def test_batch_normalisation_over_all_ranks():
    whole = np.random.default_rng(3).normal(2.0, 3.0, [4 * hvd.size(), 5]).astype("float32")
    mine = whole[4 * hvd.rank() : 4 * hvd.rank() + 4]
    layer, reference = hvd.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()
    assert layer.name.startswith("sync_batch_normalization")
    np.testing.assert_allclose(
        layer(mine, training=True), reference(whole, training=True)[4 * hvd.rank() : 4 * hvd.rank() + 4], atol=1e-4
    )
    np.testing.assert_allclose(layer.moving_mean, reference.moving_mean, atol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, reference.moving_variance, rtol=1e-4)

    weights = np.arange(20.0, dtype="float32").reshape(4, 5)
    x, all_x = tf.constant(mine), tf.constant(whole)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x, training=True) * weights)
    with tf.GradientTape() as whole_tape:
        whole_tape.watch(all_x)
        whole_loss = tf.reduce_sum(reference(all_x, training=True) * np.tile(weights, [hvd.size(), 1]))
    wanted = whole_tape.gradient(whole_loss, all_x)[4 * hvd.rank() : 4 * hvd.rank() + 4]
    np.testing.assert_allclose(tape.gradient(loss, x), wanted, atol=1e-3)
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)


def test_states_begin_alike_and_go_back():
    x = tf.Variable([float(hvd.rank())])
    state = hvd.elastic.TensorFlowState([x], batch=hvd.rank())
    seen = []

    @hvd.elastic.run
    def train(state):
        seen.append((float(x[0]), state.batch))
        x.assign_add([1.0])
        state.batch += 1
        state.restore()
        return float(x[0])

    assert train(state) == 0.0
    assert seen == [(0.0, 0)]

    model = tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(2)])
    model.compile("adam", "mse")
    keras_state = hvd.elastic.TensorFlowKerasState(model, epoch=hvd.rank())
    keras_state.sync()
    assert keras_state.epoch == 0
    mine = [value.tolist() for value in model.get_weights()]
    assert hvd.allgather_object(mine) == [mine] * hvd.size()
    model.layers[0].kernel.assign(tf.ones([3, 2]))
    keras_state.restore()
    assert [value.tolist() for value in model.get_weights()] == mine
    with pytest.raises(ValueError, match="built"):
        hvd.elastic.TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(2)]))


def test_a_rank_that_has_not_trained_has_all_variables_to_send():
    model = tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(2)])
    optimizer = tf.keras.optimizers.Adam(0.1)
    if hvd.rank() == 0:
        optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables], model.trainable_variables)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer)
    state.sync()
    mine = [tf.convert_to_tensor(v).numpy().tolist() for v in optimizer.variables]
    assert hvd.allgather_object(mine) == [mine] * hvd.size()
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (tf.errors.UnknownError(None, None, "Horovod has been shut down (by rank 1)\n [[{{node mine}}]]"), True),
        (tf.errors.UnknownError(None, None, "lost rank 1 on node7: its process has exited [[{{node mine}}]]"), True),
        (tf.errors.UnknownError(None, None, "any reason [[{{node HorovodAllreduce_grad_0}}]]"), True),
        (tf.errors.InternalError(None, None, "lost rank 1 on node7: connection reset (in compiled code)"), True),
        (tf.errors.FailedPreconditionError(None, None, "Horovod has not been initialized; use hvd.init()."), True),
        (tf.errors.FailedPreconditionError(None, None, "Mismatched data types [[{{node HorovodAllreduce}}]]"), False),
        (tf.errors.UnknownError(None, None, "a disk is full"), False),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_lost_collective_is_an_internal_error_to_elastic_training(error, lost):
    def fail(state):
        raise error

    state = hvd.elastic.TensorFlowState([tf.Variable(1.0)])
    with pytest.raises(hvd.HorovodInternalError if lost else type(error)):
        hvd.elastic._translated(fail)(state)


def test_what_an_optimizer_of_keras_ignores_is_said_once():
    options = {"op": hvd.Sum, "groups": 2}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizers = [
            hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), name="ignores", **options) for _ in range(2)
        ]
    texts = [str(warning.message) for warning in seen if "ignores" in str(warning.message)]
    assert [text.split(" for an optimizer of Keras")[0].split("ignores ")[1] for text in texts] == ["op=Sum", "groups"]
    # As in Horovod.
    weight = tf.Variable([0.0])
    optimizers[0].apply_gradients([(tf.constant([hvd.rank() + 1.0]), weight)])
    np.testing.assert_allclose(weight.numpy(), [-mean_of(lambda rank: rank + 1.0)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
