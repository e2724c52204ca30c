"""How one process trains a model of JAX's for `JaxEstimator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from corro.spark.common._training import History, Training, packed_arrays, unpacked_arrays

__all__ = ["apply_of", "train"]


def apply_of(model: Any) -> Callable[..., Any]:
    """`apply(params, *inputs)` of a model: its method of that name (Flax), or the model itself."""
    return model.apply if hasattr(model, "apply") else model


def train(training: Training, pickled: bytes) -> tuple[Any, History, list[list[int]]]:
    """Gives the trained parameters, what was measured, and the shapes of what the model puts out for a row."""
    import cloudpickle
    import jax

    import corro.jax as hvd

    hvd.init()
    model, params, optimizer, losses = cloudpickle.loads(pickled)
    with training.data(hvd.rank(), hvd.size()) as data:
        batches = data.train_data()
        checks = data.val_data() if training.val_dir is not None else None
        if params is None:
            first = training.inputs(next(iter(data.train_data())))
            params = model.init(jax.random.key(int(training["random_seed"] or 0)), *first)
        job = _Job(training, model, params, optimizer, losses)
        job.restore()
        for epoch in range(job.epoch, int(training["epochs"])):
            job.one_epoch(epoch, batches, checks)
    return jax.tree_util.tree_map(np.asarray, job.params), job.history, job.shapes


class _Job:
    """Parameters on their way: the state of their optimizer, what was measured."""

    def __init__(self, training: Training, model: Any, params: Any, optimizer: Any, losses: Sequence[Any]) -> None:
        import jax
        import optax

        import corro.jax as hvd

        self._training = training
        self._apply = apply_of(model)
        self._losses = losses
        self._metrics = _named(training["metrics"])
        # Processes take larger steps together than one would alone.
        self._optimizer = hvd.DistributedOptimizer(
            optax.chain(optimizer, optax.scale(float(hvd.size()))),
            compression=training["gradient_compression"] or hvd.Compression.none,
            backward_passes_per_step=int(training["backward_passes_per_step"]),
        )
        self.params = jax.tree_util.tree_map(jax.numpy.asarray, params)
        self._state = self._optimizer.init(self.params)
        self.history: History = {}
        self.shapes: list[list[int]] = []
        self.epoch = 0
        self._look = jax.jit(self._measure)
        self._learn = jax.jit(self._learn_from)

    # Checkpoints.

    def restore(self) -> None:
        """From the checkpoint of a run that was there before; then all ranks have what rank 0 has."""
        import jax

        import corro.jax as hvd

        found = self._training.read_checkpoint() if hvd.rank() == 0 else None
        found = hvd.broadcast_object(found, 0, "checkpoint")
        if found is not None:
            arrays, about = unpacked_arrays(found)
            structure = jax.tree_util.tree_structure((self.params, self._state))
            self.params, self._state = jax.tree_util.tree_unflatten(structure, [jax.numpy.asarray(a) for a in arrays])
            self.epoch, self.history, self.shapes = about["epoch"], about["history"], about["shapes"]
        self.params = hvd.broadcast_parameters(self.params, 0)
        self._state = hvd.broadcast_optimizer_state(self._state, 0)

    def _checkpoint(self) -> bytes:
        import jax

        leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves((self.params, self._state))]
        return packed_arrays(leaves, {"epoch": self.epoch, "history": self.history, "shapes": self.shapes})

    # Epochs.

    def one_epoch(self, epoch: int, batches: Any, checks: Any) -> None:
        import corro.jax as hvd

        measured = self._pass(batches, is_training=True)
        if checks is not None:
            measured |= {f"val_{name}": value for name, value in self._pass(checks, is_training=False).items()}
        # One number for each name, the same on all ranks: weighted by the rows that each rank has seen.
        told = hvd.allgather_object(measured, "measured")
        for name in measured:
            total, rows = np.sum([one[name] for one in told], axis=0)
            self.history.setdefault(name, []).append(float(total / rows))
        self.epoch = epoch + 1
        for callback in self._training["callbacks"]:
            callback(self.epoch, {name: values[-1] for name, values in self.history.items()})
        if hvd.rank() == 0:
            self._training.keep(self._checkpoint(), self.epoch, self.history)

    def _pass(self, batches: Any, is_training: bool) -> dict[str, tuple[float, float]]:
        names = ["loss", *self._metrics]
        totals, rows = np.zeros(len(names)), 0
        for batch in batches:
            inputs, labels = self._training.inputs(batch), self._training.labels(batch)
            weights = self._training.weights(batch)
            weights = np.ones(len(labels[0]), np.float32) if weights is None else weights
            self.shapes = self.shapes or self._output_shapes(inputs)
            if is_training:
                self.params, self._state, seen = self._learn(self.params, self._state, inputs, labels, weights)
            else:
                _, seen = self._look(self.params, inputs, labels, weights)
            totals += len(labels[0]) * np.array([float(one) for one in seen])
            rows += len(labels[0])
        return {name: (total, float(rows)) for name, total in zip(names, totals.tolist(), strict=True)}

    def _learn_from(self, params: Any, state: Any, inputs: Any, labels: Any, weights: Any) -> Any:
        import jax
        import optax

        (_, seen), gradients = jax.value_and_grad(self._measure, has_aux=True)(params, inputs, labels, weights)
        updates, state = self._optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, seen

    def _measure(self, params: Any, inputs: Any, labels: Any, weights: Any) -> Any:
        """The loss of a batch, and all that is told of it."""
        outputs = _listed(self._apply(params, *inputs))
        parts = zip(self._losses, outputs, labels, self._training["loss_weights"], strict=True)
        loss = sum(share * _weighted(one, output, label, weights) for one, output, label, share in parts)
        seen = (outputs[0], labels[0]) if len(labels) == 1 else (outputs, labels)
        return loss, [loss, *(metric(*seen) for metric in self._metrics.values())]

    def _output_shapes(self, inputs: Sequence[np.ndarray]) -> list[list[int]]:
        import jax

        outputs = _listed(jax.eval_shape(self._apply, self.params, *inputs))
        if len(outputs) != len(self._losses):
            raise ValueError(f"the model gives {len(outputs)} arrays, but there are {len(self._losses)} label_cols.")
        return [list(output.shape[1:]) for output in outputs]


def _weighted(loss: Any, output: Any, label: Any, weights: Any) -> Any:
    """The mean over rows, each of which counts as its weight says. A loss of one number for all is taken as it is."""
    if output.ndim == label.ndim + 1 and output.shape[-1] == 1:
        label = label.reshape(output.shape)
    each = loss(output, label)
    if each.ndim == 0:
        return each
    each = each.reshape(len(weights), -1).mean(axis=1)
    return (each * weights).sum() / weights.sum()


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _named(metrics: Any) -> dict[str, Callable[..., Any]]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    return {getattr(metric, "__name__", type(metric).__name__.lower()): metric for metric in metrics}
