"""What the cases for Keras share: small models, data, and what all ranks have."""

import importlib
import os
import zlib

import keras
import numpy as np
import pytest

import corro
import corro.keras as hvd

BACKEND = keras.backend.backend()


FRONTS = ["corro.keras", *(["corro.tensorflow.keras"] if BACKEND == "tensorflow" else [])]


@pytest.fixture(autouse=True, params=FRONTS if os.environ.get("CORRO_TEST_THOROUGH") else ["either"])
def _front(request):
    """Where there are two modules a test runs with one of them, always the same one: they differ in what they have by
    which name. `make deep` runs all tests with both."""
    name = request.param
    if name == "either":
        name = FRONTS[zlib.crc32(request.node.originalname.encode()) % len(FRONTS)]
    request.module.hvd = importlib.import_module(name)


def array(tensor):
    return np.array(keras.ops.convert_to_numpy(tensor))


def tensor(values, dtype="float32"):
    return keras.ops.convert_to_tensor(np.asarray(values, dtype))


def variable(values, **kwargs):
    return keras.Variable(np.asarray(values, "float32"), **kwargs)


def on_all(values):
    """What every rank has, by rank."""
    return corro._front.objects.allgather_object(values)


def assert_same_on_all(values):
    everyone = on_all(values)
    for rank, theirs in enumerate(everyone):
        for mine, other in zip(everyone[0], theirs, strict=True):
            np.testing.assert_array_equal(mine, other, err_msg=f"rank {rank} differs from rank 0")


def state_of(model):
    return [array(v) for v in (*model.weights, *model.optimizer.variables)]


def model_of(optimizer, seed=0, **compile_options):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(8, activation="tanh", name="hidden"),
            keras.layers.Dense(3, name="output"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **compile_options)
    return model


def data(seed, rows=32):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype("float32")
    return x, (x.sum(1) > 0).astype("int32") + (x[:, 0] > 1)


def apply_once(optimizer, gradients, starts=None):
    """Variables after one step with these gradients, from 0 unless `starts` says otherwise."""
    variables = [variable(np.zeros_like(g) if g is not None else 0.0) for g in gradients]
    for v, start in zip(variables, starts or [], strict=False):
        v.assign(np.asarray(start, "float32"))
    optimizer.apply([None if g is None else tensor(g) for g in gradients], variables)
    return [array(v) for v in variables], variables


def ranks():
    return np.arange(1.0, hvd.size() + 1)
