"""Ranks that do not train one model together are told so, by `fit` on every backend of Keras; others hear nothing."""

import time
import warnings

import keras
import pytest
from keras_help import BACKEND, _front, data, model_of, tensor, variable  # noqa: F401 - a fixture of every test

import corro
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


# Loops that a program writes itself: TensorFlow's front looks in graphs as well, the others where tensors have values.
LOOPS = pytest.mark.parametrize("graph", [False, *([True] if BACKEND == "tensorflow" else [])])


def said_in_loop(graph, start=1.0, rate=0.01, taken=0, steps=5, local=False, right=False, **options):
    """What rank 0 was warned of in a loop of `optimizer.apply`."""
    weights = [variable([[start] * 3] * 20, name="kernel"), variable([1.0], name="bias")]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate), **options)
    optimizer.build(weights)
    optimizer._iterations.assign(taken)
    if local:
        optimizer.register_local_var(weights[0])
    gradients = [tensor([[1.0] * 3] * 20), tensor([hvd.rank() + 1.0])]

    def step():
        optimizer.apply(gradients, weights)

    if graph:
        import tensorflow as tf

        step = tf.function(step)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(steps):
            step()
        deadline = time.monotonic() + 60
        while graph and not right and hvd.rank() == 0 and not seen and time.monotonic() < deadline:
            time.sleep(0.01)  # a graph does not wait for the answer
        # What is on its way has arrived when all have reached this.
        corro._front.objects.allgather_object("here")
    return [str(warning.message) for warning in seen if "CORRO_CHECKS" in str(warning.message)]


@LOOPS
@pytest.mark.parametrize("options", [{}, {"backward_passes_per_step": 2}], ids=str)
def test_a_right_loop_hears_nothing(graph, options):
    assert said_in_loop(graph, steps=9, right=True, **options) == []


@LOOPS
@pytest.mark.parametrize(
    ("what", "wrong", "parts"),
    [
        ("start", lambda rank: 1.0 + rank, ["parameter kernel (number 1) is [", "on rank 1"]),
        ("rate", lambda rank: 0.01 * (1 + rank), ["the learning rate is 0.0", "on rank 1"]),
        ("taken", lambda rank: 7 * rank, ["the number of steps is ", "on rank 1"]),
    ],
    ids=["start", "rate", "taken"],
)
def test_a_loop_in_which_ranks_differ(graph, what, wrong, parts):
    if hvd.size() == 1:
        return
    texts = said_in_loop(graph, **{what: wrong(hvd.rank())})
    only_on_rank_0(texts[:1], *parts)


@LOOPS
def test_in_a_loop_as_well_what_each_rank_trains_for_itself_may_differ(graph):
    assert said_in_loop(graph, start=1.0 + hvd.rank(), local=True, right=True) == []
