"""Parameter servers under Keras, on every backend. Runs on all ranks of a job that `test_keras_jobs.py` starts."""

import keras
import numpy as np
import pytest
from keras_help import (
    BACKEND,
    _front,  # noqa: F401 - a fixture of every test
    array,
    assert_same_on_all,
    data,
    model_of,
    state_of,
)

import corro
import corro.keras as hvd
import corro.ps

MAKERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
}


def fitted(optimizer, epochs=2):
    model = model_of(optimizer)
    history = model.fit(*data(hvd.rank(), 64), batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model, history.history["loss"]


def test_sums_have_the_bits_of_an_allreduce():
    by_allreduce, _ = fitted(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    by_servers, _ = fitted(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), mode="ps"))
    for mine, theirs in zip(state_of(by_servers), state_of(by_allreduce), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert_same_on_all(state_of(by_servers))


def test_fewer_bytes():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), mode="ps", compression="int8 block=32")
    model, losses = fitted(optimizer, epochs=6)
    assert losses[-1] < 0.9 * losses[0]
    assert_same_on_all(state_of(model))


@pytest.mark.parametrize("name", MAKERS)
def test_servers_own_the_weights(name):
    optimizer = hvd.DistributedOptimizer(MAKERS[name](), mode="ps", staleness=1)
    model, losses = fitted(optimizer, epochs=6)
    assert losses[-1] < losses[0]
    if hvd.size() > 1:
        store = model.optimizer.store
        store.barrier()
        assert_same_on_all([store.pull(key) for key in store._kinds])
    assert int(array(model.optimizer.iterations)) == 48


def test_nobody_waits():
    model, losses = fitted(hvd.DistributedOptimizer(keras.optimizers.SGD(0.02), mode="ps", staleness=None), epochs=6)
    assert losses[-1] < losses[0]
    model.optimizer.store.barrier()


def test_what_does_not_work_is_explained():
    with pytest.raises(ValueError, match="no RMSprop"):
        hvd.DistributedOptimizer(keras.optimizers.RMSprop(), mode="ps", staleness=2)
    with pytest.raises(ValueError, match="amsgrad"):
        hvd.DistributedOptimizer(keras.optimizers.Adam(amsgrad=True), mode="ps", staleness=2)
    with pytest.raises(ValueError, match='mode is "allreduce" or "ps"'):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), mode="ring")
    if BACKEND == "tensorflow":
        with pytest.raises(ValueError, match="asked by Python"):
            model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(), mode="ps"), jit_compile=True)


def test_tables_at_servers(tmp_path):
    """The layer learns as `keras.layers.Embedding` does, with the same optimizer on all data."""
    start = np.random.default_rng(3).normal(size=(20, 4)).astype("float32")
    ids = np.random.default_rng(10 + hvd.rank()).integers(0, 20, (16, 2))
    wanted = np.tile([1.0, -1.0, 0.5, 0.0], (16, 1))

    def model_with(layer, optimizer):
        model = keras.Sequential([keras.Input((2,), dtype="int32"), layer, keras.layers.GlobalAveragePooling1D()])
        model.compile(optimizer, loss="mse")
        return model

    layer = hvd.layers.ShardedEmbedding(20, 4, optimizer=corro.ps.SGD(lr=0.5), init=lambda _: start, table="t")
    model = model_with(layer, hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)))
    plain = keras.layers.Embedding(20, 4, embeddings_initializer=lambda shape, dtype=None: start)
    reference = model_with(plain, hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), sparse_as_dense=True))
    losses = [(model.train_on_batch(ids, wanted), reference.train_on_batch(ids, wanted)) for _ in range(5)]
    for mine, theirs in losses:
        np.testing.assert_allclose(np.array(mine), np.array(theirs), rtol=1e-4)
    assert float(losses[-1][0]) < float(losses[0][0])
    assert layer.count_params() == 1
    folder = corro._front.objects.broadcast_object(str(tmp_path))
    layer.save_table(folder)
    before = array(layer(np.arange(20)))
    model.train_on_batch(ids, wanted)
    layer.load_table(folder)
    np.testing.assert_array_equal(array(layer(np.arange(20))), before)
