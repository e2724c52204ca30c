"""Keras 2 (`tf_keras`, by TF_USE_LEGACY_KERAS=1): its newer optimizers and those it calls legacy, on every rank of a job."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.keras
import horovod.tensorflow.keras as hvd

keras = tf.keras
OPTIMIZERS = pytest.mark.parametrize(
    "make",
    [keras.optimizers.Adam, keras.optimizers.SGD, keras.optimizers.legacy.Adam, keras.optimizers.legacy.SGD],
    ids=lambda make: f"{make.__module__.split('.')[-2]}.{make.__name__}",
)


def model_of(optimizer):
    keras.utils.set_random_seed(hvd.rank() + 1)
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def fit(model, *callbacks, epochs=2):
    x = np.random.default_rng(5).normal(size=[64, 4]).astype("float32")
    mine = slice(hvd.rank(), None, hvd.size())
    return model.fit(x[mine], x[mine].sum(1), 8, epochs, 0, [*callbacks]).history


def state_of(model):
    return [v.numpy().tolist() for v in (*model.variables, *model.optimizer.variables())]


def assert_same_on_all(value):
    assert hvd.allgather_object(value) == [value] * hvd.size()


def test_this_is_keras_2():
    assert keras.layers.Layer.__module__.startswith("tf_keras")


@OPTIMIZERS
def test_ranks_train_one_model(make, tmp_path):
    optimizer = hvd.DistributedOptimizer(make(0.01))
    assert isinstance(optimizer, make)
    assert (type(optimizer).__module__, type(optimizer).__name__) == ("horovod._keras", make.__name__)
    model = model_of(optimizer)
    history = fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback())
    assert_same_on_all([*state_of(model), history["loss"]])

    for suffix in (".h5", ".keras"):
        path = str(tmp_path / f"model{suffix}")
        model.save(path)
        plain, again = keras.models.load_model(path), hvd.load_model(path)
        assert not type(plain.optimizer).__module__.startswith("horovod")
        assert type(again.optimizer).__module__ == "horovod._keras"
        # Keras 2 forgets the state of its legacy optimizers in the newer format.
        assert state_of(again) == state_of(plain)
        assert suffix != ".h5" or state_of(again) == state_of(model)
        fit(again, epochs=1)
        assert_same_on_all(state_of(again))


@OPTIMIZERS
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("wrap", [lambda step: step, tf.function], ids=["eager", "graph"])
def test_every_second_gradient_is_applied(make, average, wrap):
    optimizer = hvd.DistributedOptimizer(
        make(0.1), backward_passes_per_step=2, average_aggregated_gradients=average, sparse_as_dense=True
    )
    weights = tf.Variable([[1.0], [2.0]])
    step = wrap(lambda gradient: optimizer.apply_gradients([(tf.IndexedSlices(gradient, [0, 1], [2, 1]), weights)]))
    mean = sum(range(1, hvd.size() + 1)) / hvd.size()
    for i in range(4):
        before = weights.numpy()
        step(tf.fill([2, 1], hvd.rank() + 1.0))
        assert (weights.numpy() != before).all() == (i % 2 == 1)
        if i % 2 == 1 and make.__name__ == "SGD":
            np.testing.assert_allclose(weights.numpy(), before - 0.1 * mean * (1 if average else 2), rtol=1e-5)
    assert int(optimizer.iterations) == 4


@OPTIMIZERS
def test_a_model_of_accumulated_gradients(make):
    model = model_of(hvd.DistributedOptimizer(make(0.01), backward_passes_per_step=2))
    fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    assert_same_on_all([w.tolist() for w in model.get_weights()])


@OPTIMIZERS
def test_the_module_for_any_keras_takes_them_too(make):
    """`horovod.keras` was for the same Keras as `tf.keras` in its time."""
    optimizer = horovod.keras.DistributedOptimizer(make(0.01))
    assert isinstance(optimizer, make)
    model = model_of(optimizer)
    callbacks = [
        horovod.keras.callbacks.BroadcastGlobalVariablesCallback(0),
        horovod.keras.callbacks.MetricAverageCallback(),
    ]
    history = fit(model, *callbacks)
    assert_same_on_all([*state_of(model), history["loss"]])
    np.testing.assert_allclose(horovod.keras.allreduce(np.float32(hvd.rank())), (hvd.size() - 1) / 2)


def test_an_optimizer_of_keras_3_stays_one():
    import keras as keras3

    optimizer = horovod.keras.DistributedOptimizer(keras3.optimizers.SGD(1.0))
    assert isinstance(optimizer, keras3.optimizers.SGD)
    weights = keras3.Variable([0.0])
    optimizer.apply([tf.constant([hvd.rank() + 1.0])], [weights])
    np.testing.assert_allclose(weights.numpy(), [-(hvd.size() + 1) / 2])


def pairs_of(optimizer, how, weights):
    """The gradients of all ranks together, by one of the ways that Keras itself takes."""
    factor = hvd.rank() + 1.0
    if how == "aggregate":
        name = "_aggregate_gradients" if "legacy" in kind_of(optimizer) else "aggregate_gradients"
        return getattr(optimizer, name)([(tf.fill([2], factor), weights)])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights * factor)
    return optimizer._compute_gradients(loss, [weights], tape=tape)


def kind_of(optimizer):
    return optimizer.__class__.__module__


@OPTIMIZERS
@pytest.mark.parametrize("how", ["compute", "aggregate"])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_gradients_are_reduced_once(make, how, op):
    """Whoever asks for them has them of all ranks, may clip them, and applies them as they are."""
    aggregated = {"experimental_aggregate_gradients": False} if how == "aggregate" else {}
    optimizer = hvd.DistributedOptimizer(make(0.5), op=op)
    plain = make(0.5)
    weights, alone = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])
    together = sum(range(1, hvd.size() + 1)) / (hvd.size() if op == hvd.Average else 1)
    for _ in range(3):
        ((gradient, variable),) = pairs_of(optimizer, how, weights)
        assert variable is weights
        np.testing.assert_allclose(gradient, [together] * 2)
        clipped, _ = tf.clip_by_global_norm([gradient], 0.1)
        optimizer.apply_gradients([(clipped[0], weights)], **aggregated)
        plain.apply_gradients([(clipped[0], alone)])
        np.testing.assert_array_equal(weights, alone)
    # What was not asked for here is reduced when it is applied.
    optimizer.apply_gradients([(tf.fill([2], hvd.rank() + 1.0), weights)])
    plain.apply_gradients([(tf.fill([2], together), alone)])
    np.testing.assert_allclose(weights, alone, rtol=1e-6)
    assert_same_on_all(weights.numpy().tolist())


@OPTIMIZERS
def test_who_says_that_gradients_are_aggregated_is_believed(make):
    optimizer, plain = hvd.DistributedOptimizer(make(0.5)), make(0.5)
    weights, alone = tf.Variable([1.0]), tf.Variable([1.0])
    for option in ({"experimental_aggregate_gradients": False}, {"skip_gradients_aggregation": True}):
        if "legacy" in kind_of(plain) and "skip_gradients_aggregation" in option:
            continue
        for each, variable in ((optimizer, weights), (plain, alone)):
            each.apply_gradients([(tf.constant([hvd.rank() + 1.0]), variable)], **option)
        np.testing.assert_array_equal(weights, alone)


@OPTIMIZERS
@pytest.mark.parametrize("wrap", [lambda step: step, tf.function], ids=["eager", "graph"])
def test_minimize(make, wrap):
    optimizer, plain = hvd.DistributedOptimizer(make(0.1), op=hvd.Sum), make(0.1)
    weights, alone = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])
    wrap(lambda: optimizer.minimize(lambda: tf.reduce_sum(weights * (hvd.rank() + 1.0)), [weights]) and None)()
    together = float(sum(range(1, hvd.size() + 1)))
    plain.minimize(lambda: tf.reduce_sum(alone * together), [alone])
    np.testing.assert_allclose(weights, alone, rtol=1e-6)


@OPTIMIZERS
def test_a_loss_that_overflows_on_one_rank_skips_the_step_on_all(make):
    """Keras aggregates before it looks whether gradients are finite; else ranks would wait for each other."""
    optimizer = keras.mixed_precision.LossScaleOptimizer(hvd.DistributedOptimizer(make(0.5)))
    weights = tf.Variable([1.0])
    for step in range(3):
        before = weights.numpy().tolist()
        bad = step == 1 and hvd.rank() == hvd.size() - 1
        optimizer.apply_gradients([(tf.constant([np.inf if bad else hvd.rank() + 1.0], tf.float32), weights)])
        assert (weights.numpy().tolist() == before) == (step == 1)
        assert_same_on_all([weights.numpy().tolist(), float(optimizer.loss_scale)])


@OPTIMIZERS
def test_the_passes_since_the_last_step_are_counted(make):
    optimizer = hvd.DistributedOptimizer(make(0.1), backward_passes_per_step=3)
    weights = tf.Variable([1.0])
    counts = []
    for _ in range(4):
        optimizer.apply_gradients([(tf.constant([1.0]), weights)])
        counts.append(int(optimizer._agg_helper.counter))
    assert counts == [1, 2, 0, 1]
    assert hvd.DistributedOptimizer(make(0.1))._agg_helper is None


@OPTIMIZERS
@pytest.mark.parametrize("options", [{"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"clipvalue": 0.1}], ids=str)
def test_keras_clips_what_all_ranks_have_together(make, options):
    """Each rank's own gradients, clipped, would have another mean."""
    if hvd.size() == 1:
        pytest.skip("alone both are the same")
    optimizer, plain = hvd.DistributedOptimizer(make(0.5, **options)), make(0.5, **options)
    weights, alone = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
    # All but one rank point the other way: the mean is small, and points where the last one does not.
    mine = tf.constant([1.0, 0.0]) if hvd.rank() else tf.constant([-1.0, 0.05])
    mean = (tf.constant([1.0, 0.0]) * (hvd.size() - 1) + tf.constant([-1.0, 0.05])) / hvd.size()
    optimizer.apply_gradients([(mine, weights)])
    plain.apply_gradients([(mean, alone)])
    np.testing.assert_allclose(weights, alone, rtol=1e-4, atol=1e-7)
    assert_same_on_all(weights.numpy().tolist())
