"""Ranks that do not train one model together are told so, by `fit` on every backend of Keras; others hear nothing."""

import warnings

import keras
import pytest
from keras_help import _front, data, model_of  # noqa: F401 - a fixture of every test

import corro.keras as hvd


def said(model, *callbacks, epochs=2):
    """What rank 0 was warned of while training."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.fit(*data(hvd.rank()), batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return [str(warning.message) for warning in seen if "CORRO_CHECKS" in str(warning.message)]


def only_on_rank_0(texts, *parts):
    assert len(texts) == (1 if hvd.rank() == 0 else 0), texts
    for part in parts if texts else ():
        assert part in texts[0]


def adam(rate=0.01):
    return hvd.DistributedOptimizer(keras.optimizers.Adam(rate))


@pytest.mark.parametrize("compiled", ["auto", False])
def test_a_right_training_hears_nothing(compiled):
    model = model_of(adam(), seed=hvd.rank(), jit_compile=compiled)
    assert said(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0), epochs=3) == []


def test_weights_that_nobody_broadcast():
    if hvd.size() == 1:
        return
    texts = said(model_of(adam(), seed=hvd.rank()))
    only_on_rank_0(texts, "parameter kernel (weight 1 of the model) is", "on rank 0", "on rank 1")


def test_learning_rates_that_differ():
    if hvd.size() == 1:
        return
    texts = said(model_of(adam(0.01 * (hvd.rank() + 1))))
    only_on_rank_0(texts[:1], "the learning rate is 0.0", "on rank 1")


def test_steps_that_differ():
    if hvd.size() == 1:
        return
    optimizer = adam()
    model = model_of(optimizer)
    if hvd.rank() == 1:
        optimizer.iterations.assign(7)
    only_on_rank_0(said(model)[:1], "the number of steps is", "on rank 1")


def test_what_each_rank_trains_for_itself_may_differ():
    optimizer = adam()
    model = model_of(optimizer, seed=hvd.rank())
    for weight in model.trainable_variables:
        optimizer.register_local_var(weight)
    assert said(model) == []


def test_checks_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("CORRO_CHECKS", "0")
    assert said(model_of(adam(), seed=hvd.rank())) == []
