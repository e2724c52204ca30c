"""Ranks that do not train one model together are told so by trainers and optimizers; others hear nothing."""

import warnings

import mxnet as mx
import numpy as np
import pytest

import corro.mxnet as hvd
from corro._front.checks import TrainingMistake

HOW = pytest.mark.parametrize("how", ["trainer", "optimizer"])


def said(how, seed=0, rate=0.1, steps=5, between=lambda step, optimizer: None):
    """What all ranks were warned of, while they took a few steps from weights by this seed."""
    # Not drawn by MXNet, whose random numbers are not the same in each run.
    start = np.random.default_rng(seed).normal(size=(3, 2)).astype(np.float32)
    parameter = mx.gluon.Parameter("weight", shape=(3, 2))
    parameter.initialize(mx.init.Constant(mx.nd.array(start)))
    if how == "trainer":
        trainer = hvd.DistributedTrainer([parameter], "sgd", {"learning_rate": rate}, prefix="checks")
        optimizer = trainer._optimizer
        step = lambda: trainer.step(1)  # noqa: E731
    else:
        optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=rate))
        step = lambda: optimizer.update(7, parameter.data(), parameter.grad(), None)  # noqa: E731
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(steps):
            with mx.autograd.record():
                loss = (parameter.data() * (hvd.rank() + 1)).sum()
            loss.backward()
            between(number, optimizer)
            step()
    here = [str(w.message) for w in caught if "CORRO_CHECKS" in str(w.message)]
    return [text for texts in hvd.allgather_object(here) for text in texts]


@HOW
@pytest.mark.parametrize("level", ["0", "1", "2"])
def test_a_right_training_hears_nothing(how, level, monkeypatch):
    monkeypatch.setenv("CORRO_CHECKS", level)
    assert said(how, steps=9) == []


@HOW
def test_weights_that_nobody_broadcast(how):
    texts = said(how, seed=hvd.rank())
    if hvd.size() == 1:
        assert texts == []
        return
    assert len(texts) == 1, texts
    assert "parameter w" in texts[0]
    assert " is [" in texts[0]
    assert "on rank 1" in texts[0]


@HOW
def test_learning_rates_that_differ(how):
    texts = said(how, rate=0.1 * (1 + hvd.rank()))
    if hvd.size() > 1:
        assert "the learning rate is 0." in texts[0]
        assert "on rank 1" in texts[0]


@HOW
def test_steps_that_differ(how):
    def between(step, optimizer):
        if step == 2 and hvd.rank() == 0:
            getattr(optimizer, "_optimizer", optimizer)._index_update_count.update({0: 40, 7: 40})

    texts = said(how, steps=9, between=between)
    if hvd.size() > 1:
        assert any("the number of steps taken is " in text and "on rank 0" in text for text in texts), texts


def test_all_checks_raise(monkeypatch):
    if hvd.size() == 1:
        return
    monkeypatch.setenv("CORRO_CHECKS", "2")
    with pytest.raises(TrainingMistake, match="do not train the same model: the learning rate"):
        said("trainer", rate=0.1 * (1 + hvd.rank()))
