"""Gradients are final when they are used: clipping by a norm, by Keras or by hand, leaves all ranks the same weights."""

import keras
import numpy as np
import pytest
from keras_help import (
    _front,  # noqa: F401 - a fixture of every test
    array,
    assert_same_on_all,
    data,
    model_of,
    on_all,
    state_of,
    tensor,
    variable,
)

import corro.keras as hvd


@pytest.mark.parametrize("options", [{"global_clipnorm": 0.05}, {"clipnorm": 0.05}, {"clipvalue": 0.01}], ids=str)
def test_keras_clips_what_the_ranks_have_together(options):
    """As plain Keras does with all data at once. Clipped rank by rank, the gradients would have another mean."""
    parts = [data(rank) for rank in range(hvd.size())]
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, **options)))
    model.fit(*parts[hvd.rank()], batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert_same_on_all(state_of(model))

    reference = model_of(keras.optimizers.SGD(0.5, **options))
    for _ in range(2):
        for at in range(0, 32, 8):
            reference.train_on_batch(*(np.concatenate([part[i][at : at + 8] for part in parts]) for i in (0, 1)))
    for ours, wanted in zip(state_of(model), state_of(reference), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-3, atol=1e-5)


def test_gradients_that_the_program_clips():
    """Each rank clips its own, and the mean of those is applied."""
    shapes = [(7, 3), (3,), (64, 64), ()]
    variables = [variable(np.zeros(shape)) for shape in shapes]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    random = np.random.default_rng(hvd.rank())
    expected = [np.zeros(shape) for shape in shapes]
    for _ in range(5):
        own = [random.normal(size=shape) for shape in shapes]
        norm = np.sqrt(sum((gradient**2).sum() for gradient in own))
        clipped = [gradient * 0.1 / norm for gradient in own]
        optimizer.apply([tensor(gradient) for gradient in clipped], variables)
        means = [np.mean(gradients, axis=0) for gradients in zip(*on_all(clipped), strict=True)]
        expected = [total - mean for total, mean in zip(expected, means, strict=True)]
    assert_same_on_all([array(v) for v in variables])
    for v, wanted in zip(variables, expected, strict=True):
        np.testing.assert_allclose(array(v), wanted, rtol=1e-4, atol=1e-6)


def test_the_passes_since_the_last_step_are_counted():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=3)
    v = variable([0.0])
    counts = []
    for _ in range(4):
        optimizer.apply([tensor([1.0])], [v])
        counts.append(int(array(optimizer._agg_helper.counter)))
    assert counts == [1, 2, 0, 1]
    assert hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))._agg_helper is None
