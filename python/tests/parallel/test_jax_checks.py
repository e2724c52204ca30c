"""Ranks that do not train one model together are told so by optimizers; others hear nothing."""

import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

import corro.jax as hvd


def said(start=1.0, rate=0.1, taken=0, steps=5, transform=lambda f: f, name="checks", **options):
    """What all ranks were warned of while they took a few steps."""
    optimizer = hvd.DistributedOptimizer(optax.inject_hyperparams(optax.adam)(learning_rate=rate), name, **options)
    params = {"w": jnp.full((20, 3), start), "b": jnp.zeros(())}
    state = optimizer.init(params)
    if taken:
        state = state._replace(count=state.count + taken)
    update = transform(optimizer.update)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            gradients = {"w": jnp.full((20, 3), 1.0 + hvd.rank()), "b": jnp.ones(())}
            updates, state = update(gradients, state, params)
            params = optax.apply_updates(params, updates)
    here = [str(w.message) for w in caught if "CORRO_CHECKS" in str(w.message)]
    return [text for texts in hvd.allgather_object(here) for text in texts]


@pytest.mark.parametrize("level", ["0", "1", "2"])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("options", [{}, {"backward_passes_per_step": 2}, {"op": hvd.Adasum}], ids=str)
def test_a_right_training_hears_nothing(monkeypatch, level, transform, options):
    monkeypatch.setenv("CORRO_CHECKS", level)
    if "backward_passes_per_step" not in options:
        assert said(steps=9, transform=transform, **options) == []
        return
    optimizer = hvd.DistributedOptimizer(optax.adam(0.1), "passes", **options)
    params = {"w": jnp.ones(3)}
    state, update = optimizer.init(params), transform(optimizer.update)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(9):
            _, state = update({"w": jnp.full(3, 1.0 + hvd.rank())}, state, params)


@pytest.mark.parametrize(
    ("what", "wrong", "parts"),
    [
        ("start", lambda rank: 1.0 + rank, ["parameter ['w'] is [", "on rank 1"]),
        (
            "rate",
            lambda rank: 0.1 * (1 + rank),
            ["the learning rate at .hyperparams['learning_rate'] is 0.1", "on rank 1"],
        ),
        ("taken", lambda rank: 7 * rank, ["the number of steps at .", "on rank 1"]),
    ],
    ids=["start", "rate", "taken"],
)
def test_ranks_that_differ(what, wrong, parts):
    if hvd.size() == 1:
        return
    texts = said(**{what: wrong(hvd.rank())})
    assert texts
    for part in parts:
        assert part in texts[0]
