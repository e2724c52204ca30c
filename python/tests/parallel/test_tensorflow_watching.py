"""Ranks whose variables differ are told so by the tapes and optimizers that reduce their gradients; others hear nothing."""

import time
import warnings

import numpy as np
import pytest
import tensorflow as tf

import corro.tensorflow as hvd
from corro._front import checks

MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


def said(mode, differ, steps=3, broadcast_after=None):
    """What this rank was warned of in a few steps with variables that differ from the start, or do not."""
    start = float(hvd.rank() + 1 if differ else 1)
    variables = [tf.Variable(tf.fill([40, 3], start), name="table"), tf.Variable(start, name="bias")]

    def step(rate):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variables[0]) * (hvd.rank() + 1.0) * variables[1]
        tape = hvd.DistributedGradientTape(tape)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(rate * gradient)

    step = step if mode == "eager" else tf.function(step)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for number in range(steps):
            step(tf.constant(0.001))
            if number == broadcast_after:
                hvd.broadcast_variables(variables, root_rank=0)
        if differ and broadcast_after is None and hvd.rank() == 0 and hvd.size() > 1:
            deadline = time.monotonic() + 60
            while not seen and time.monotonic() < deadline:
                time.sleep(0.01)  # a graph does not wait for the answer
        # What is on its way has arrived when all have reached this.
        hvd.allgather_object("here")
    return [str(warning.message) for warning in seen if "CORRO_CHECKS" in str(warning.message)]


@MODES
def test_variables_that_nobody_broadcast(mode):
    texts = said(mode, differ=True)
    if hvd.rank() == 0 and hvd.size() > 1:
        assert len(texts) == 1, texts
        assert "parameter table (number 1) is [" in texts[0]
        assert "on rank 1" in texts[0]
    else:
        assert texts == []


@MODES
@pytest.mark.parametrize("options", [{"differ": False}, {"differ": True, "broadcast_after": 0}], ids=str)
def test_a_right_training_hears_nothing(mode, options):
    """Also one that broadcasts after its first step, as Horovod's examples do."""
    assert said(mode, steps=9, **options) == []


@MODES
def test_learning_rates_of_an_optimizer_that_differ(mode):
    variable = tf.Variable([1.0, 2.0], name="table")
    rate = 0.001 * (1 + hvd.rank())
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(rate))

    def step():
        optimizer.minimize(lambda: tf.reduce_sum(variable) * (hvd.rank() + 1.0), var_list=[variable])

    step = step if mode == "eager" else tf.function(step)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            step()
        deadline = time.monotonic() + 60
        while hvd.rank() == 0 and hvd.size() > 1 and not seen and time.monotonic() < deadline:
            time.sleep(0.01)
        hvd.allgather_object("here")
    texts = [str(warning.message) for warning in seen if "CORRO_CHECKS" in str(warning.message)]
    if hvd.rank() == 0 and hvd.size() > 1:
        assert "the learning rate is 0.001 on rank 0 but 0.002 on rank 1" in texts[0], texts
    else:
        assert texts == []


@MODES
def test_all_checks_raise(mode, monkeypatch):
    if hvd.size() == 1:
        return
    monkeypatch.setenv("CORRO_CHECKS", "2")
    with pytest.raises((checks.TrainingMistake, tf.errors.OpError), match="do not train the same model"):
        said_forever(mode)


def said_forever(mode):
    variable = tf.Variable(float(hvd.rank()))

    def step():
        with tf.GradientTape() as tape:
            loss = variable * 2.0
        variable.assign_sub(hvd.DistributedGradientTape(tape).gradient(loss, [variable])[0])

    step = step if mode == "eager" else tf.function(step)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        step()


@MODES
def test_local_variables_may_differ(mode):
    variable = tf.Variable(float(hvd.rank()))

    def step():
        with tf.GradientTape() as tape:
            loss = variable * 2.0
        tape = hvd.DistributedGradientTape(tape)
        tape.register_local_source(variable)
        variable.assign_sub(tape.gradient(loss, [variable])[0])

    step = step if mode == "eager" else tf.function(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            step()


def test_steps_that_are_traced_anew_go_on_counting():
    """A batch of another size, as the last one often is on some ranks only, has a graph of its own."""
    variable = tf.Variable([1.0])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x) * variable
        gradient = hvd.DistributedGradientTape(tape).gradient(loss, [variable])
        variable.assign_sub(0.1 * gradient[0])

    for number in range(10):
        short = number % 3 == 2 and hvd.rank() == hvd.size() - 1
        step(tf.ones([1 if short else 2 + number % 2]))
    everyone = hvd.allgather_object(variable.numpy().tolist())
    assert everyone == [everyone[0]] * hvd.size()
    assert np.isfinite(variable.numpy()).all()
