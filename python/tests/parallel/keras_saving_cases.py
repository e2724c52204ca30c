"""What must stay true when optimizers and models of `corro.keras` are copied, saved and loaded, on every backend of Keras.
Runs on all ranks of a job that `test_keras_jobs.py` starts."""

import copy
import pickle

import cloudpickle
import keras
import numpy as np
import pytest
from keras_help import (
    _front,  # noqa: F401 - a fixture of every test
    apply_once,
    array,
    assert_same_on_all,
    data,
    model_of,
    ranks,
    state_of,
    tensor,
)

import corro.keras as hvd


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_training_goes_on_after_saving_and_loading(tmp_path, suffix):
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.Adam(0.02, beta_1=0.8)))
    model.fit(*data(hvd.rank()), batch_size=8, shuffle=False, verbose=0)
    path = str(tmp_path / f"model{suffix}")
    model.save(path)

    plain = keras.models.load_model(path)
    assert type(plain.optimizer).__name__ == "Adam"
    assert not hasattr(plain.optimizer, "register_local_var")
    loaded = hvd.load_model(path)
    assert hasattr(loaded.optimizer, "register_local_var")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for ours, wanted in zip(state_of(loaded), state_of(model), strict=True):
        np.testing.assert_array_equal(ours, wanted)
    for each in (model, loaded):
        each.fit(*data(10 + hvd.rank()), batch_size=8, shuffle=False, verbose=0)
    for ours, wanted in zip(state_of(loaded), state_of(model), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-7)
    assert_same_on_all(state_of(loaded))


def test_weights_saved_by_a_distributed_model_fit_a_plain_one(tmp_path):
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.RMSprop(0.01)))
    model.fit(*data(hvd.rank()), batch_size=16, verbose=0)
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    plain = model_of(keras.optimizers.RMSprop(0.01), seed=5)
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(path)
    for ours, wanted in zip(state_of(plain), state_of(model), strict=True):
        np.testing.assert_array_equal(ours, wanted)


@keras.saving.register_keras_serializable(package="corro_tests")
class Halving(keras.optimizers.Optimizer):
    """An optimizer of the user's own: half the gradient."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, keras.ops.multiply(gradient, 0.5))


def test_an_optimizer_of_the_users_own(tmp_path):
    optimizer = hvd.DistributedOptimizer(Halving(learning_rate=0.1))
    after, _ = apply_once(optimizer, [np.full(2, hvd.rank() + 1.0)])
    np.testing.assert_allclose(after[0], np.full(2, -ranks().mean() / 2))
    model = model_of(hvd.DistributedOptimizer(Halving(learning_rate=0.1)))
    model.fit(*data(hvd.rank()), verbose=0)
    path = str(tmp_path / "own.keras")
    model.save(path)
    loaded = hvd.load_model(path, custom_optimizers=[Halving])
    assert isinstance(loaded.optimizer, Halving)
    assert hasattr(loaded.optimizer, "register_local_var")


def test_what_the_wrapper_is():
    inner = keras.optimizers.Adam(0.3)
    inner.exclude_from_weight_decay(var_names=["bias"])
    first, second = hvd.DistributedOptimizer(inner), hvd.DistributedOptimizer(inner)
    assert isinstance(first, keras.optimizers.Adam)
    assert type(first).__name__ == "Adam"
    assert first.variables() == first.variables
    assert first._exclude_from_weight_decay_pattern is inner._exclude_from_weight_decay_pattern
    # Wrapping twice gives two optimizers, which train two models.
    for optimizer in (first, second):
        apply_once(optimizer, [np.ones(2)])
    assert int(array(first.iterations)) == 1
    assert int(array(inner.iterations)) == 0


@pytest.mark.parametrize("passes", [1, 2])
def test_configs_and_copies_are_distributed(passes):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum, backward_passes_per_step=passes)
    config = optimizer.get_config()
    if passes == 1:
        assert config == keras.optimizers.SGD(1.0, name=config["name"]).get_config()
    copies = [
        optimizer.from_config(config),
        type(optimizer).from_config(config),
        optimizer.__class__.from_config(config),
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
        cloudpickle.loads(cloudpickle.dumps(optimizer)),
    ]
    for each in copies:
        assert each.get_config() == config
        after, variables = apply_once(each, [np.array([hvd.rank() + 1.0])])
        if passes == 2:
            np.testing.assert_array_equal(after[0], [0.0])
            each.apply([tensor([1.0])], variables)
            np.testing.assert_allclose(array(variables[0]), [-ranks().sum() - hvd.size()])
        else:
            np.testing.assert_allclose(after[0], [-ranks().sum()])


OPTIMIZERS = ["SGD", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Ftrl", "Lion", "Nadam", "RMSprop"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_saved_as_itself(name, tmp_path):
    optimizer = hvd.DistributedOptimizer(getattr(keras.optimizers, name)(learning_rate=0.01))
    assert type(optimizer).__name__ == optimizer.__class__.__name__ == name
    model = model_of(optimizer, run_eagerly=True)
    model.train_on_batch(*data(hvd.rank()))
    assert_same_on_all(state_of(model))
    model.save(tmp_path / "model.keras")
    described = keras.saving.serialize_keras_object(optimizer)
    assert described == keras.saving.serialize_keras_object(
        getattr(keras.optimizers, name).from_config(described["config"])
    )
    loaded = hvd.load_model(tmp_path / "model.keras", compression=hvd.Compression.fp16)
    assert type(loaded.optimizer).__name__ == name
    for ours, wanted in zip(state_of(loaded), state_of(model), strict=True):
        np.testing.assert_array_equal(ours, wanted)


class Doubling(keras.optimizers.SGD):
    """An optimizer that Keras has not been told of."""


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_loading_by_a_function_that_makes_the_optimizer(tmp_path, suffix):
    """As Horovod's users do for classes of their own; functions for other things are left alone."""

    def made(**config):
        return hvd.DistributedOptimizer(Doubling(**config))

    def some_loss(wanted, got):
        return keras.ops.mean(keras.ops.square(wanted - got))

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(Doubling(0.25, momentum=0.5)), loss=some_loss)
    x, _ = data(hvd.rank())
    model.fit(x, x[:, :1], verbose=0)
    path = str(tmp_path / f"model{suffix}")
    model.save(path)
    for objects in ({"Doubling": made}, {"Doubling": Doubling}):
        loaded = hvd.load_model(path, custom_objects={**objects, "some_loss": some_loss})
        assert type(loaded.optimizer).__name__ == "Doubling"
        assert loaded.optimizer.get_config() == model.optimizer.get_config()
        for ours, wanted in zip(state_of(loaded), state_of(model), strict=True):
            np.testing.assert_array_equal(ours, wanted)
        loaded.fit(x, x[:, :1], verbose=0)
        assert_same_on_all(state_of(loaded))


@pytest.mark.parametrize("eagerly", [False, True])
def test_ranks_whose_layers_have_other_names(tmp_path, eagerly):
    """One rank resumes from a file, the others build the model: its variables are called by other paths, and counted so."""
    options = {"loss": "mse", "run_eagerly": eagerly}

    def build():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)), **options)
        return model

    x, _ = data(hvd.rank())
    model = build()
    model.save(tmp_path / "model.keras")
    if hvd.rank() == 0:
        keras.layers.Dense(1)
        model = hvd.load_model(tmp_path / "model.keras")
        model.compile(model.optimizer, **options)
    else:
        model = build()
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[callback])
    assert_same_on_all(state_of(model))


def test_best_model(tmp_path):
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss", mode="min")
    assert callback.filepath is None
    assert callback.save_best_only
    callback.filepath = str(tmp_path / "best.keras")
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.fit(*data(0), epochs=1, verbose=0, callbacks=[callback])
    assert hvd.load_model(callback.filepath).optimizer is not None
