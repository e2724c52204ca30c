"""What `corro.keras` must do in training, on every backend of Keras. Runs on all ranks of a job that `test_keras_jobs.py`
starts."""

import functools
import importlib
import os

import keras
import numpy as np
import pytest
from keras_help import (
    BACKEND,
    _front,  # noqa: F401 - a fixture of every test
    apply_once,
    array,
    assert_same_on_all,
    data,
    model_of,
    on_all,
    ranks,
    state_of,
    tensor,
    variable,
)

import corro
import corro.keras as hvd
from corro._errors import HorovodInternalError, HostsUpdatedInterrupt
from corro._front.process_sets import add_process_set, remove_process_set

REDUCTIONS = {
    "average": ({}, lambda ranks: ranks.mean()),
    "sum": ({"op": hvd.Sum}, lambda ranks: ranks.sum()),
    "predivided": ({"gradient_predivide_factor": 4.0}, lambda ranks: ranks.mean()),
    "fp16": ({"compression": hvd.Compression.fp16}, lambda ranks: ranks.mean()),
    "two groups": ({"groups": 2}, lambda ranks: ranks.mean()),
    "other options": ({"sparse_as_dense": True, "device_dense": "/cpu:0", "name": "x/y z"}, lambda ranks: ranks.mean()),
}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_gradients_are_reduced(kind):
    options, factor = REDUCTIONS[kind]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
    mine = hvd.rank() + 1.0
    gradients = [np.full((3, 2), mine), None, np.array([mine, -2 * mine]), np.array(0.5 * mine)]
    after, _ = apply_once(optimizer, gradients)
    for result, pattern in zip(after, [np.full((3, 2), 1.0), 0.0, [1.0, -2.0], 0.5], strict=True):
        np.testing.assert_allclose(result, -np.asarray(pattern) * factor(ranks()), rtol=1e-3)


def test_groups_of_variables_and_dtypes():
    variables = [variable([0.0]), variable([0.0, 0.0]), variable([0.0]), keras.Variable(np.zeros(2, "float16"))]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=[[variables[2], variables[0]]])
    mine = hvd.rank() + 1.0
    gradients = [tensor([mine]), tensor([mine, mine]), tensor([2 * mine]), tensor([mine, mine], "float16")]
    optimizer.apply(gradients, variables)
    for v, times in zip(variables, (1, 1, 2, 1), strict=True):
        np.testing.assert_allclose(array(v), np.full(v.shape, -times * ranks().mean()), rtol=1e-3)


def test_a_step_is_a_step_on_the_batches_of_all_ranks():
    """The mean of the ranks' gradients is the gradient of the mean: plain Keras on all data at once is the reference."""
    parts = [data(rank) for rank in range(hvd.size())]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model = model_of(optimizer)
    mine = parts[hvd.rank()]
    model.fit(*mine, batch_size=8, epochs=2, shuffle=False, verbose=0)

    reference = model_of(keras.optimizers.Adam(0.01))
    batches = [np.concatenate([part[i][at : at + 8] for part in parts]) for at in range(0, 32, 8) for i in (0, 1)]
    for _ in range(2):
        for x, y in zip(batches[::2], batches[1::2], strict=True):
            reference.train_on_batch(x, y)
    for ours, wanted in zip(state_of(model), state_of(reference), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-3, atol=1e-5)
    assert_same_on_all(state_of(model))


@pytest.mark.parametrize("eagerly", [False, True])
def test_fit_keeps_the_ranks_alike_once_broadcast(eagerly):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    model = model_of(optimizer, seed=hvd.rank(), run_eagerly=eagerly)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=hvd.size() - 1)
    average = hvd.callbacks.MetricAverageCallback()
    history = model.fit(*data(hvd.rank()), batch_size=8, epochs=2, verbose=0, callbacks=[callback, average])
    assert callback.broadcast_done
    assert_same_on_all(state_of(model))
    assert_same_on_all([np.array(history.history["loss"]), np.array(history.history["accuracy"])])
    assert array(optimizer.iterations) == 8


def test_broadcast_leaves_local_variables_alone():
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), seed=hvd.rank())
    kept = model.get_layer("output").kernel
    before = array(kept)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.register_local_var(kept)
    model.fit(*data(0), batch_size=32, verbose=0, callbacks=[callback])
    np.testing.assert_array_equal(array(kept), before)
    assert_same_on_all([array(model.get_layer("hidden").kernel)])


def test_metrics_are_averaged_in_place():
    callback = hvd.callbacks.MetricAverageCallback()
    logs = {"loss": float(hvd.rank()), "accuracy": np.float32(2 * hvd.rank()), "word": "kept", "nothing": None}
    logs |= {"tensor": tensor(hvd.rank()), "per class": np.array([hvd.rank(), 1.0])}
    callback.on_epoch_end(0, logs)
    mean = (hvd.size() - 1) / 2
    np.testing.assert_allclose(logs.pop("per class"), [mean, 1.0])
    assert logs == {"loss": mean, "accuracy": 2 * mean, "word": "kept", "nothing": None, "tensor": mean}
    callback.on_epoch_end(0, None)


class Rates(keras.callbacks.Callback):
    """The learning rate with which each batch was trained."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        self.rates.append(float(array(self.model.optimizer.learning_rate)))


def rates_of(*callbacks, epochs=3):
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.9)))
    rates = Rates()
    history = model.fit(*data(0), batch_size=8, epochs=epochs, verbose=0, callbacks=[*callbacks, rates])
    return rates.rates, history.history


def test_warmup(capsys):
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1)
    rates, history = rates_of(warmup)
    size = hvd.size()
    wanted = [0.8 / size * ((i + 1) / 4 * (size - 1) / 2 + 1) for i in range(8)] + [0.8] * 4
    np.testing.assert_allclose(rates, wanted, rtol=1e-5)
    np.testing.assert_allclose(history["lr"], [wanted[3], 0.8, 0.8], rtol=1e-5)
    assert ("finished gradual learning rate warmup to 0.8" in capsys.readouterr().out) == (hvd.rank() == 0)


def test_schedules():
    staircase = hvd.callbacks.LearningRateScheduleCallback(0.4, 0.1, start_epoch=1)
    rates, _ = rates_of(staircase)
    np.testing.assert_allclose(rates, [0.5] * 4 + [0.4] * 4 + [0.04] * 4, rtol=1e-5)
    smooth = hvd.callbacks.LearningRateScheduleCallback(1.0, lambda epoch: epoch + 1, end_epoch=2, staircase=False)
    rates, _ = rates_of(smooth)
    np.testing.assert_allclose(rates, [*(1 + i / 4 for i in range(8)), *[2.75] * 4], rtol=1e-5)
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.1)


def test_momentum_correction():
    """v' = momentum * (new / old) * v - new * gradient, in the one batch after the change."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5))
    model = model_of(optimizer)
    model.fit(*data(0, 8), batch_size=8, shuffle=False, verbose=0)
    velocity = [array(v) for v in optimizer.momentums]
    for correct in (True, False):
        for v, value in zip(optimizer.momentums, velocity, strict=True):
            v.assign(value)
        optimizer.learning_rate = 0.1
        schedule = hvd.callbacks.LearningRateScheduleCallback(0.4, lambda epoch: 1.0, momentum_correction=correct)
        schedule.set_model(model)
        schedule.on_epoch_begin(0)
        schedule.on_train_batch_begin(0)
        np.testing.assert_allclose(float(array(optimizer.learning_rate)), 0.4, rtol=1e-6)
        for v, value in zip(optimizer.momentums, velocity, strict=True):
            np.testing.assert_allclose(array(v), value * (4 if correct else 1), rtol=1e-5)


@pytest.mark.parametrize("average", [False, True])
def test_backward_passes_per_step(average):
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=3, average_aggregated_gradients=average
    )
    v = variable([10.0, 20.0])
    mine = hvd.rank() + 1.0
    seen = []
    for step in range(1, 7):
        optimizer.apply([tensor([mine * step, 1.0])], [v])
        seen.append(array(v))
        assert int(array(optimizer.iterations)) == step
    # Steps 1..3 and 4..6 add up; the ranks' sums are averaged.
    factor = 1 / 3 if average else 1.0
    first = np.array([10.0, 20.0]) - factor * np.array([6 * ranks().mean(), 3.0])
    second = first - factor * np.array([15 * ranks().mean(), 3.0])
    for got, wanted in zip(seen, [[10.0, 20.0]] * 2 + [first] * 3 + [second], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_backward_passes_in_fit():
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    model = model_of(optimizer)
    parts = [data(rank) for rank in range(hvd.size())]
    model.fit(*parts[hvd.rank()], batch_size=8, shuffle=False, verbose=0)
    reference = model_of(keras.optimizers.SGD(0.1))
    for at in (0, 16):
        reference.train_on_batch(*(np.concatenate([part[i][at : at + 16] for part in parts]) for i in (0, 1)))
    for ours, wanted in zip(model.weights, reference.weights, strict=True):
        np.testing.assert_allclose(array(ours), array(wanted), rtol=1e-3, atol=1e-5)
    assert_same_on_all(state_of(model))


@pytest.mark.parametrize("scaled", [True, False])
def test_local_variables(scaled):
    made = getattr(hvd, "PartialDistributedOptimizer", hvd.DistributedOptimizer)
    optimizer = made(keras.optimizers.SGD(1.0), scale_local_gradients=scaled)
    shared, local = variable([0.0]), variable([0.0])
    optimizer.register_local_var(local)
    mine = hvd.rank() + 1.0
    optimizer.apply([tensor([mine]), tensor([mine])], [shared, local])
    np.testing.assert_allclose(array(shared), [-ranks().mean()])
    np.testing.assert_allclose(array(local), [-mine / (hvd.size() if scaled else 1)])


def test_local_layers():
    if hvd.__name__ == "corro.tensorflow.keras":
        assert not hasattr(hvd, "PartialDistributedOptimizer"), "Horovod has this in horovod.keras only"
        return
    keras.utils.set_random_seed(0)
    layer = keras.layers.Dense(3, name="output")
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, name="hidden"), layer])
    model.compile(hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=layer), "mse")
    x, _ = data(hvd.rank())
    model.fit(x, np.full((32, 3), float(hvd.rank())), verbose=0)
    assert_same_on_all([array(v) for v in model.get_layer("hidden").weights])
    kernels = on_all(array(layer.kernel))
    assert hvd.size() == 1 or not np.array_equal(kernels[0], kernels[1])
    with pytest.raises(ValueError, match="local_layers"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=["output"])


@pytest.mark.skipif("CORRO_RANK" not in os.environ or os.environ.get("CORRO_SIZE") == "1", reason="needs two ranks")
def test_process_sets():
    first = add_process_set([0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=first)
    after, _ = apply_once(optimizer, [np.array([hvd.rank() + 1.0])])
    np.testing.assert_allclose(after[0], [-(hvd.rank() + 1.0)])
    remove_process_set(first)


def step(optimizer, gradient, v):
    """One step as Keras's trainer does it: on JAX the loss scaler knows no other."""
    if BACKEND != "jax":
        optimizer.apply([tensor(gradient)], [v])
        return
    if not optimizer.built:
        optimizer.build([v])
    state = [x.value for x in optimizer.variables]
    (value,), state = optimizer.stateless_apply(state, [tensor(gradient)], [v.value])
    v.assign(value)
    for x, new in zip(optimizer.variables, state, strict=True):
        x.assign(new)


def test_steps_that_overflow_are_skipped_by_all_ranks():
    """Keras puts a loss scaler around the optimizer of a float16 model; it must not decide differently on each rank."""
    scaler = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), initial_scale=4.0)
    v = variable([1.0])
    last = hvd.size() - 1
    step(scaler, [np.inf if hvd.rank() == last else 4.0], v)
    np.testing.assert_array_equal(array(v), [1.0])
    step(scaler, [2.0 * (hvd.rank() + 1)], v)
    np.testing.assert_allclose(array(v), [1.0 - ranks().mean()])

    around = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=2.0))
    v = variable([1.0])
    step(around, [np.nan if hvd.rank() == last else 4.0], v)
    np.testing.assert_array_equal(array(v), [1.0])


def test_a_float16_model_trains(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        model.fit(*data(hvd.rank()), batch_size=8, epochs=1, verbose=0)
        assert_same_on_all(state_of(model))
    finally:
        keras.config.set_dtype_policy("float32")


def test_the_progress_bar_is_rank_0s_unless_asked_for(capsys):
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    shown = {}
    for verbose in ("auto", 1, 2, 0):
        model.fit(*data(0), batch_size=16, verbose=verbose)
        shown[verbose] = "loss" in capsys.readouterr().out
    assert shown == {"auto": hvd.rank() == 0, 1: True, 2: True, 0: False}


@pytest.mark.filterwarnings("error:Dynamo does not know how to trace")
def test_jit_compile(monkeypatch):
    """Compiled steps train like others. Torch reads and splits them, but its C++ compiler takes too long for a test."""
    if BACKEND == "torch":
        if hvd.size() == 1:
            return  # nothing is reduced, and torch takes its time to read a step
        import torch

        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    models = [model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), jit_compile=jit) for jit in (True, False)]
    for model in models:
        model.fit(*data(hvd.rank()), batch_size=8, shuffle=False, verbose=0)
    for ours, wanted in zip(state_of(models[0]), state_of(models[1]), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-6)
    assert_same_on_all(state_of(models[0]))


def test_jit_compile_where_it_cannot_work(monkeypatch):
    backend = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))._reducer.backend
    monkeypatch.setattr(backend, "jit_problem", lambda: "this test says so")
    distributed = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match=r"this test says so.*jit_compile=False"):
        model_of(distributed, jit_compile=True)
    assert model_of(distributed).jit_compile is False
    # A model that is compiled without an optimizer, as a GAN is, may use distributed ones of its own.
    own = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    own.compile(loss="mse")
    assert own.jit_compile is False
    assert model_of(keras.optimizers.SGD(0.1), jit_compile=True).jit_compile is True


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow has sparse gradients")
@pytest.mark.parametrize("dense", [False, True])
def test_gradients_of_embeddings(dense):
    import tensorflow as tf

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=dense)
    table = variable(np.zeros((4, 2)))
    rows = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([0, hvd.rank() % 2 + 1]), tf.constant([4, 2]))
    optimizer.apply([rows], [table])
    wanted = np.zeros((4, 2))
    for rank in range(hvd.size()):
        wanted[0] -= 1 / hvd.size()
        wanted[rank % 2 + 1] -= 1 / hvd.size()
    np.testing.assert_allclose(array(table), wanted, rtol=1e-5)
    with pytest.raises(ValueError, match="sparse_as_dense"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2).apply([rows], [table])


def test_values():
    size, mine = hvd.size(), hvd.rank() + 1.0
    assert float(hvd.allreduce(mine)) == ranks().mean()
    summed = hvd.allreduce(np.array([mine, 2.0]), "sum", None, op=hvd.Sum)
    np.testing.assert_allclose(array(summed), [ranks().sum(), 2.0 * size])
    with pytest.warns(DeprecationWarning):
        assert float(hvd.allreduce(mine, "sum", False)) == ranks().sum()
    np.testing.assert_allclose(array(hvd.allreduce(variable([mine]), None, None, 2.0, 3.0)), [6 * ranks().mean()])
    # `horovod.keras` has `average=True`, `horovod.tensorflow.keras` has None.
    if hvd.__name__ == "corro.keras":
        with pytest.raises(ValueError, match="supersedes average"):
            hvd.allreduce(mine, op=hvd.Sum)
    else:
        assert float(hvd.allreduce(mine, op=hvd.Sum)) == ranks().sum()
    # Numbers and lists have the dtype that the backend gives them, not NumPy's.
    for result in (hvd.allreduce(1.0), hvd.broadcast([1.0], 0), hvd.allgather([1.0]), hvd.reducescatter([1.0])):
        assert array(result).dtype == "float32"
    np.testing.assert_allclose(array(hvd.allreduce(tensor([mine]), compression=hvd.Compression.fp16)), [ranks().mean()])
    np.testing.assert_allclose(array(hvd.allgather([[mine]])), ranks()[:, None])
    np.testing.assert_allclose(array(hvd.broadcast([mine], root_rank=size - 1)), [size])
    np.testing.assert_allclose(array(hvd.reducescatter(np.ones((size, 2)))), np.ones((1, 2)))


def test_mistakes():
    for options, message in (
        ({"op": corro.Min}, "op=hvd.Average"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"groups": 0}, "groups"),
        ({"groups": [["name"]]}, "groups"),
    ):
        with pytest.raises(ValueError, match=message):
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
    once = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(once)
    with pytest.raises(ValueError, match="takes an optimizer"):
        hvd.DistributedOptimizer(object())
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), num_groups=1)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends take one step after the other")
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("scaled", [False, True])
def test_two_optimizers_in_one_compiled_step(passes, scaled):
    """They work at the same time, in branches of one graph, on variables of the same names."""
    import tensorflow as tf

    if scaled and passes > 1:
        return  # refused, and tested elsewhere
    optimizers, variables = [], []
    for _ in range(2):
        each = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=passes)
        optimizers.append(keras.optimizers.LossScaleOptimizer(each, initial_scale=1.0) if scaled else each)
        variables.append(variable(np.zeros(100)))
        optimizers[-1].build(variables[-1:])

    @tf.function
    def step(gradient):
        for factor, (optimizer, v) in enumerate(zip(optimizers, variables, strict=True), 1):
            optimizer.apply_gradients([(factor * gradient, v)])

    for _ in range(40):
        step(tf.fill((100,), hvd.rank() + 1.0))
    for factor, v in enumerate(variables, 1):
        np.testing.assert_allclose(array(v), np.full(100, -40 * factor * ranks().mean()))


def test_what_keras_3_forgot():
    """An argument that Horovod's examples give, and Keras 2's name for the learning rate."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model_of(optimizer, experimental_run_tf_function=False)
    optimizer.lr = 0.25
    assert float(array(optimizer.learning_rate)) == float(array(optimizer.lr)) == 0.25
    with pytest.raises(TypeError, match="experimental_run_tf_function"):
        model_of(keras.optimizers.SGD(0.1), experimental_run_tf_function=False)


def test_callbacks_are_called_by_either_name():
    """Horovod's have `on_batch_end`, which classes derived from them call; Keras calls `on_train_batch_end`."""
    for name in ("on_batch_end", "on_train_batch_end"):
        model, state = elastic_model(0)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.elastic.UpdateBatchStateCallback(state)]
        for callback in callbacks:
            callback.set_model(model)
            callback.set_params({"steps": 4})
            callback.on_train_begin()
            getattr(callback, name)(0)
        assert callbacks[0].broadcast_done
        assert state.batch == 1


def test_horovods_names():
    horovod = pytest.importorskip("horovod", reason="corro-horovod is not installed here")
    assert horovod.__version__ == "0.28.1"
    front = hvd.__name__
    for name in (front, f"{front}.callbacks", f"{front}.elastic"):
        assert importlib.import_module(name.replace("corro", "horovod", 1)) is importlib.import_module(name)


def elastic_model(seed):
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), seed=seed)
    return model, hvd.elastic.KerasState(model, batch=0, epoch=0)


def test_elastic_state():
    model, state = elastic_model(hvd.rank())
    state.sync()
    assert_same_on_all(state_of(model))
    start = state_of(model)
    model.fit(*data(0), verbose=0)
    state.epoch = 5
    state.restore()
    assert state.epoch == 0
    for now, then in zip(state_of(model), start, strict=True):
        np.testing.assert_array_equal(now, then)
    state.epoch = 7
    state.save()
    state.epoch = 8
    state.restore()
    assert state.epoch == 7
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="built"):
        hvd.elastic.KerasState(unbuilt)


def test_elastic_training_resumes_where_it_was_committed():
    model, state = elastic_model(0)
    batches = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            batches.append((state.epoch, state.batch))
            if len(batches) == 6 and hvd.rank() == hvd.size() - 1:
                # The others learn of it in the middle of their step, as an error of their backend.
                hvd.shutdown()
                raise HorovodInternalError("a rank is lost, says this test")
            if len(batches) == 9:
                raise HostsUpdatedInterrupt(skip_sync=False)

    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
        Watch(),
    ]

    @hvd.elastic.run
    def train(state):
        model.fit(
            *data(hvd.rank()), batch_size=8, epochs=3 - state.epoch, shuffle=False, verbose=0, callbacks=callbacks
        )

    train(state)
    assert (state.epoch, state.batch) == (3, 0)
    done = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    # What was done since the last commit is done again after a loss; an update of hosts loses nothing.
    again = [(1, 0), (1, 1), (1, 2)]
    assert batches == [*done, *again, (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert_same_on_all(state_of(model))


def test_gradients_are_compressed_by_the_engine():
    """One bit says little of a value; but the sum of many steps is right, if what is left out is added the next time."""
    rules = {"*bias*": hvd.Compression.none, "*": hvd.Compression.onebit(block=32, inside=True)}
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=rules)
    kernel = keras.Variable(np.zeros(64, "float32"), name="kernel")
    bias = keras.Variable(np.zeros(3, "float32"), name="bias")
    of_rank = [np.random.default_rng(rank).uniform(-1, 1, 64).astype("float32") for rank in range(hvd.size())]
    for _ in range(50):
        optimizer.apply([tensor(of_rank[hvd.rank()]), tensor(np.full(3, hvd.rank() + 1.0, "float32"))], [kernel, bias])
    np.testing.assert_allclose(array(bias), np.full(3, -0.5 * ranks().mean()), rtol=1e-4)
    np.testing.assert_allclose(array(kernel), -0.5 * np.mean(of_rank, axis=0), atol=0.12)
    if hvd.size() > 1:
        entries = hvd.compression_report()
        assert any(entry["compression"].startswith("onebit") for entry in entries.values()), entries
    mean = hvd.allreduce(hvd.rank() + 1.0, name="value", compression=hvd.Compression.int8(inside=True))
    np.testing.assert_allclose(array(mean), ranks().mean(), rtol=0.02)
    with pytest.raises(ValueError, match="name="):
        hvd.allreduce(1.0, compression=hvd.Compression.int8())
