"""How one process trains a model of Keras' for `KerasEstimator`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corro.spark.common._device import gpu_number
from corro.spark.common._training import History, Training, packed_arrays, unpacked_arrays
from corro.spark.keras._serial import from_config, model_bytes, model_of

__all__ = ["train"]


def train(training: Training, model_content: bytes, compiled_with: Mapping[str, Any]) -> tuple[bytes, History]:
    """Gives the trained model (by `model_bytes`) and what was measured."""
    import corro.keras as hvd  # chooses the Keras

    hvd.init()
    _choose_gpu(training)
    import keras

    if training["random_seed"] is not None:
        keras.utils.set_random_seed(int(training["random_seed"]))
    known = training["custom_objects"]
    model = model_of(model_content, known)
    optimizer = hvd.DistributedOptimizer(
        _larger_steps(from_config(compiled_with["optimizer"], known), hvd.size()),
        compression=training["gradient_compression"] or hvd.Compression.none,
        backward_passes_per_step=int(training["backward_passes_per_step"]),
    )
    model.compile(
        optimizer=optimizer,
        loss=from_config(compiled_with["loss"], known),
        loss_weights=compiled_with["loss_weights"],
        metrics=from_config(compiled_with["metrics"], known),
    )
    with training.data(hvd.rank(), hvd.size()) as data:
        if not model.built:
            # It makes its weights when it sees what it is given.
            model(_alone(training.inputs(next(iter(data.train_data())))))
        begun, history = _restore(training, model, optimizer)
        _fit(training, model, data, begun, history)
    # What is left of the optimizer is of no use to a model that is trained.
    model.optimizer, model.compiled = None, False
    return model_bytes(model), history


def _choose_gpu(training: Training) -> None:
    """TensorFlow takes all GPUs that it sees, PyTorch the one that is set; JAX is left to itself."""
    import corro.keras as hvd
    from corro.keras._which import keras

    backend = keras.backend.backend()
    number = gpu_number(hvd.local_rank())
    if backend == "tensorflow":
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        seen = len(gpus) if training["use_gpu"] else 0
        tf.config.set_visible_devices([gpus[number % seen]] if seen else [], "GPU")
    elif backend == "torch":
        import torch

        seen = torch.cuda.device_count() if training["use_gpu"] else 0
        if seen:
            torch.cuda.set_device(number % seen)
    else:
        return
    if len({bool(one) for one in hvd.allgather_object(seen)}) > 1:
        raise RuntimeError("some processes see a GPU and others do not: give use_gpu=False, or GPUs to all executors.")


def _larger_steps(optimizer: Any, size: int) -> Any:
    """Processes take larger steps together than one would alone. A schedule of learning rates stays as it is."""
    config = optimizer.get_config()
    if isinstance(config.get("learning_rate"), (int, float)):
        config["learning_rate"] *= size
        return type(optimizer).from_config(config)
    return optimizer


def _fit(training: Training, model: Any, data: Any, begun: int, history: History) -> None:
    import corro.keras as hvd

    batches = data.train_data()
    checks = data.val_data() if training.val_dir is not None else None
    if begun >= int(training["epochs"]):
        return
    more = {}
    if checks is not None:
        more = {"validation_data": _forever(training, checks), "validation_steps": len(checks)}
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        *training["callbacks"],
        _keeper(training, history),
    ]
    own = training["checkpoint_callback"]
    folder = training.store.get_local_output_dir_fn(training.run_id)
    with folder() as local:
        if own is not None and hvd.rank() == 0:
            own.filepath = f"{local}/{training.store.get_checkpoint_filename()}.keras"
            callbacks += [own, _syncer(training, local)]
        model.fit(
            _forever(training, batches),
            steps_per_epoch=len(batches),
            initial_epoch=begun,
            epochs=int(training["epochs"]),
            callbacks=callbacks,
            verbose=2 if training["verbose"] > 1 and hvd.rank() == 0 else 0,
            **more,
        )


def _forever(training: Training, batches: Any) -> Iterator[tuple[Any, ...]]:
    """Epoch after epoch, as `fit` takes them."""
    while True:
        for batch in batches:
            x, y, weights = training.inputs(batch), training.labels(batch), training.weights(batch)
            given = (_alone(x), _alone(y))
            if weights is None:
                yield given
            else:
                yield (*given, weights if len(y) == 1 else tuple(weights for _ in y))


def _alone(arrays: Sequence[np.ndarray]) -> Any:
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


# Checkpoints.


def _restore(training: Training, model: Any, optimizer: Any) -> tuple[int, History]:
    """The epochs of a run that was there before, and what was measured in them. All ranks then have what rank 0 has."""
    import corro.keras as hvd

    found = training.read_checkpoint() if hvd.rank() == 0 else None
    found = hvd.broadcast_object(found, 0, "checkpoint")
    if found is None:
        return 0, {}
    arrays, about = unpacked_arrays(found)
    count = len(model.get_weights())
    model.set_weights(arrays[:count])
    optimizer.build(model.trainable_variables)
    for variable, array in zip(optimizer.variables, arrays[count:], strict=True):
        if variable is not optimizer.learning_rate:  # it is for as many processes as there were then
            variable.assign(array)
    return about["epoch"], about["history"]


def _keeper(training: Training, history: History) -> Any:
    """Notes down what was measured, and has rank 0 keep what was reached."""
    import keras

    import corro.keras as hvd

    class Keeper(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
            for name, value in (logs or {}).items():
                history.setdefault(name, []).append(float(value))
            if hvd.rank() == 0:
                variables = [keras.ops.convert_to_numpy(v) for v in self.model.optimizer.variables]
                arrays = [*self.model.get_weights(), *variables]
                about = {"epoch": epoch + 1, "history": history}
                training.keep(packed_arrays(arrays, about), epoch + 1, history)

    return Keeper()


def _syncer(training: Training, local: str) -> Any:
    """Copies what the user's own callback has written into the store."""
    import keras

    sync = training.store.sync_fn(training.run_id)

    class Syncer(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
            sync(local)

    return Syncer()
