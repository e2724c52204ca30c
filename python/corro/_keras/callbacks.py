"""What the callbacks do. A front puts each of these before Keras's own class, as `_keras` says which Keras that is.

Like Horovod's they have `on_batch_begin` and `on_batch_end`, so that classes derived from them may call either those or
`on_train_batch_...`, which is Keras's and calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corro._front import basics, watching
from corro._keras.gradients import same_variable
from corro._keras.values import as_array, average_metrics, broadcast_variables


def bring_variables(model: Any) -> None:
    """Keras on JAX keeps the values of a running training elsewhere than in the variables; this fetches them."""
    fetch = getattr(model, "jax_state_sync", None)
    if fetch is not None and getattr(model, "_jax_state", None) is not None:
        fetch()


def variables_of(model: Any, optimizer: Any) -> list[Any]:
    """What ranks must agree on: weights and the optimizer's state, but not the seeds of random numbers."""
    of_optimizer = getattr(optimizer, "variables", None) or []
    of_optimizer = of_optimizer() if callable(of_optimizer) else of_optimizer
    return [*model.weights, *of_optimizer]


class Broadcast:
    """All ranks take the variables of `root_rank` after the first batch: by then the optimizer has made its own.

    `local_variables` keep their own value on each rank; so does what `register_local_var(variable)` names. `device` is
    accepted and not needed.

    Example:
        >>> callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0)]
    """

    _keras: Any
    model: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local = list(local_variables or [])

    def register_local_var(self, var: Any) -> None:
        """This variable keeps its own value on each rank."""
        self._local.append(var)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        self.broadcast_done = True
        bring_variables(self.model)
        local = {same_variable(variable) for variable in self._local}
        variables = [v for v in variables_of(self.model, self.model.optimizer) if same_variable(v) not in local]
        broadcast_variables(self._keras, variables, self.root_rank, "BroadcastGlobalVariables")


class MetricAverage:
    """Averages metrics over the ranks at the end of each epoch. Put it before callbacks that read metrics.

    Example:
        >>> callbacks = [hvd.callbacks.MetricAverageCallback(), keras.callbacks.ReduceLROnPlateau()]
    """

    _keras: Any

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs:
            average_metrics(self._keras, logs)


class LogValues:
    """Shows the metrics of the training to those who watch the job, as `hvd.log` does.

    That is every `every` batches, and at the end of each epoch, with those of the validation.

    Example:
        >>> callbacks = [hvd.callbacks.LogValuesCallback(every=10)]
    """

    params: dict[str, Any]

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        self.every = every
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if logs and self._batches % self.every == 0:
            watching.log(self._batches, **logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        watching.log(self._batches, **{f"epoch_{name}": value for name, value in (logs or {}).items()})


class LearningRateSchedule:
    """Sets the learning rate to `initial_lr * multiplier(epoch)`, in each epoch (`staircase`) or in each batch.

    A number as `multiplier` counts once per epoch since `start_epoch`: 0.1 makes it ten times smaller each time. Works
    from `start_epoch` to before `end_epoch`. `momentum_correction` scales velocities with the rate. Raises `ValueError`
    without an `initial_lr`, or if it needs `steps_per_epoch` and can't find out.

    Example:
        >>> decay = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=lambda epoch: 0.1 ** (epoch // 30))
    """

    _keras: Any
    model: Any
    params: dict[str, Any]

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            base = multiplier
            self.multiplier = lambda epoch: base ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._steps_of_this_training()

    def _steps_of_this_training(self) -> int:
        steps = self.params.get("steps")
        if not steps and self.params.get("samples") and self.params.get("batch_size"):
            steps = self.params["samples"] // self.params["batch_size"]
        if not steps:
            raise ValueError(
                f"Could not autodetect the number of steps per epoch, which {type(self).__name__} needs to change the "
                f"learning rate in every batch. Please specify its steps_per_epoch parameter."
            )
        return int(steps)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if not self.staircase:
            assert self.steps_per_epoch, "known since the training began"
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def _adjust(self, epoch: float) -> None:
        bring_variables(self.model)
        optimizer = self.model.optimizer
        old, new = self.learning_rate(), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old > 0 and new != old:
            _scale_velocities(self._keras, optimizer, new / old)

    def learning_rate(self) -> float:
        """What the optimizer works with now."""
        return float(as_array(self._keras, self.model.optimizer.learning_rate))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            bring_variables(self.model)
            logs["lr"] = self.learning_rate()


def _scale_velocities(keras: Any, optimizer: Any, factor: float) -> None:
    """Momentum correction: the velocities, which hold the old learning rate, as if they had been made with the new one.

    Horovod multiplies the momentum for one batch instead. That is the same sum, but a compiled step has the momentum as
    a constant and would not notice.
    """
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer
    if not getattr(inner, "momentum", None):
        return
    for velocity in getattr(inner, "momentums", None) or getattr(inner, "_momentums", None) or []:
        if velocity is not None:
            velocity.assign(as_array(keras, velocity) * factor)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from `initial_lr / size` to `initial_lr` over `warmup_epochs`, a little in each batch.

    `steps_per_epoch` where Keras can't tell. `verbose=1` says when it is done.

    Example:
        >>> warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size(), warmup_epochs=5)
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The last batch of the warm-up reaches the whole rate.
            assert self.steps_per_epoch, "known since the training began"
            size = basics.size()
            return 1.0 / size * ((epoch + 1.0 / self.steps_per_epoch) * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and basics.rank() == 0:
            rate = self.learning_rate()
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.", flush=True)


class CommitState:
    """Commits an elastic state every `batches_per_commit` batches, and at the end of each epoch.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
        >>> callbacks = [hvd.elastic.CommitStateCallback(state, batches_per_commit=10)]
    """

    model: Any

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._commit()

    def _commit(self) -> None:
        self.batches_remaining = self.batches_per_commit
        bring_variables(self.model)
        self.state.commit()


class UpdateBatchState:
    """Keeps `state.batch`. An epoch that is resumed ends as many batches earlier as had been done before.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
        >>> callbacks = [hvd.elastic.UpdateBatchStateCallback(state)]
    """

    model: Any
    params: dict[str, Any]

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._done_before = 0
        self._ended_early = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._done_before = self.state.batch
        self._ended_early = False

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        done = self._done_before + batch + 1
        steps = self.params.get("steps")
        if self._done_before and steps and done >= steps and not self.model.stop_training:
            # Keras leaves the loop over batches by this, and asks again after the end of the epoch.
            self.model.stop_training = self._ended_early = True
        self.state.batch = min(done, steps) if steps else done

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._done_before = self.state.batch = 0
        if self._ended_early:
            self.model.stop_training = self._ended_early = False


class UpdateEpochState:
    """Keeps `state.epoch`, the number of epochs done, also when training starts again in the middle.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
        >>> callbacks = [hvd.elastic.UpdateEpochStateCallback(state)]
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._offset: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._offset = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # Whether a resumed `fit` counts its epochs from 0 or goes on counting: the first one is the one after state.epoch.
        if self._offset is None:
            self._offset = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = (self._offset or 0) + epoch + 1


class BestModel:
    """Saves the best model only, as Keras' `ModelCheckpoint` does. Where, is filled in later: `callback.filepath = ...`.

    Example:
        >>> checkpoint = hvd.callbacks.BestModelCheckpoint(monitor="val_loss")
        >>> checkpoint.filepath = "best.keras"
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        # Keras wants a path of the right kind at once.
        path = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(  # type: ignore[call-arg]
            path,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None
