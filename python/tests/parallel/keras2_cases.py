"""Keras 2 (`tf_keras`, by TF_USE_LEGACY_KERAS=1): its newer optimizers and those it calls legacy, on every rank of a job."""

import horovod.tensorflow.keras as hvd
import numpy as np
import pytest
import tensorflow as tf

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
