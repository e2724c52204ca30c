"""How one process trains a model of PyTorch's for `TorchEstimator`."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from corro.spark.common._device import gpu_number
from corro.spark.common._training import History, Training

__all__ = ["device_for", "saved", "train", "weighted"]


def train(training: Training, pickled: bytes) -> tuple[bytes, History, list[list[int]]]:
    """Gives the trained weights, what was measured, and the shapes of what the model puts out for a row."""
    import cloudpickle
    import torch

    import corro.torch as hvd

    hvd.init()
    if training["random_seed"] is not None:
        torch.manual_seed(int(training["random_seed"]))
    model, optimizer, losses = cloudpickle.loads(pickled)
    job = _Job(training, model, optimizer, losses, device_for(training))
    job.restore()
    with training.data(hvd.rank(), hvd.size()) as data:
        batches = data.train_data()
        checks = data.val_data() if training.val_dir is not None else None
        for epoch in range(job.epoch, int(training["epochs"])):
            job.one_epoch(epoch, batches, checks)
    weights = {name: tensor.cpu() for name, tensor in job.model.state_dict().items()}
    return saved(weights), job.history, job.shapes


def device_for(training: Training) -> Any:
    """A GPU where all processes have one."""
    import torch

    import corro.torch as hvd

    wanted = bool(training["use_gpu"]) and torch.cuda.is_available()
    if len(set(hvd.allgather_object(wanted))) > 1:
        raise RuntimeError("some processes see a GPU and others do not: give use_gpu=False, or GPUs to all executors.")
    if not wanted:
        return torch.device("cpu")
    torch.cuda.set_device(gpu_number(hvd.local_rank()) % torch.cuda.device_count())
    return torch.device("cuda")


class _Job:
    """A model on its way: its optimizer, its losses, what was measured."""

    def __init__(self, training: Training, model: Any, optimizer: Any, losses: Sequence[Any], device: Any) -> None:
        import corro.torch as hvd

        self._training = training
        self._device = device
        self.model = model.to(device)
        self._losses = losses
        self.history: History = {}
        self.shapes: list[list[int]] = []
        self.epoch = 0
        self._optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=list(self.model.named_parameters()),
            compression=training["gradient_compression"] or hvd.Compression.none,
            backward_passes_per_step=int(training["backward_passes_per_step"]),
        )
        self._scale_rates(hvd.size())

    def _scale_rates(self, factor: float) -> None:
        """Processes take larger steps together than one would alone. What is kept is for one."""
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"] * factor

    # Checkpoints.

    def restore(self) -> None:
        """From the checkpoint of a run that was there before; then all ranks have what rank 0 has."""
        import torch

        import corro.torch as hvd

        found = self._training.read_checkpoint() if hvd.rank() == 0 else None
        found = hvd.broadcast_object(found, root_rank=0, name="checkpoint")
        if found is not None:
            state = torch.load(io.BytesIO(found), map_location=self._device, weights_only=True)
            self.model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._scale_rates(hvd.size())
            self.epoch, self.history, self.shapes = state["epoch"], state["history"], state["shapes"]
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self._optimizer, root_rank=0)

    def _checkpoint(self) -> bytes:
        import corro.torch as hvd

        about = {"epoch": self.epoch, "history": self.history, "shapes": self.shapes}
        self._scale_rates(1 / hvd.size())
        written = saved({"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict(), **about})
        self._scale_rates(hvd.size())
        return written

    # Epochs.

    def one_epoch(self, epoch: int, batches: Any, checks: Any) -> None:
        import torch

        import corro.torch as hvd

        measured = self._pass(batches, is_training=True)
        if checks is not None:
            measured |= {f"val_{name}": value for name, value in self._pass(checks, is_training=False).items()}
        # One number for each name, the same on all ranks: weighted by the rows that each rank has seen.
        mine = torch.tensor(list(measured.values()), dtype=torch.float64)
        both = hvd.allreduce(mine, op=hvd.Sum, name="measured")
        for name, (total, weight) in zip(measured, both.tolist(), strict=True):
            self.history.setdefault(name, []).append(total / weight)
        self.epoch = epoch + 1
        for callback in self._training["callbacks"]:
            callback(self.epoch, {name: values[-1] for name, values in self.history.items()})
        if hvd.rank() == 0:
            self._training.keep(self._checkpoint(), self.epoch, self.history)

    def _pass(self, batches: Any, is_training: bool) -> dict[str, tuple[float, float]]:
        import torch

        self.model.train(is_training)
        metrics = _named(self._training["metrics"])
        totals = np.zeros(1 + len(metrics))
        rows = 0.0
        with torch.set_grad_enabled(is_training):
            for number, batch in enumerate(batches):
                loss, outputs, labels = self._step(batch, is_training, number)
                count = len(labels[0])
                seen = (outputs[0], labels[0]) if len(labels) == 1 else (outputs, labels)
                totals += count * np.array([loss, *(float(metric(*seen)) for metric in metrics.values())])
                rows += count
        return {name: (total, rows) for name, total in zip(["loss", *metrics], totals.tolist(), strict=True)}

    def _step(self, batch: Mapping[str, np.ndarray], is_training: bool, number: int) -> tuple[float, Any, Any]:
        """The loss of a batch, and what metrics look at."""
        inputs, labels = self._tensors(self._training.inputs(batch)), self._tensors(self._training.labels(batch))
        given = self._training.weights(batch)
        weights = None if given is None else self._tensors([given])[0]
        if is_training and number % int(self._training["backward_passes_per_step"]) == 0:
            self._optimizer.zero_grad()
        outputs = _listed(self.model(*inputs))
        if len(outputs) != len(labels):
            raise ValueError(f"the model gives {len(outputs)} tensors, but there are {len(labels)} label_cols.")
        self.shapes = self.shapes or [list(output.shape[1:]) for output in outputs]
        custom = self._training["train_minibatch_fn"]
        if custom is not None and is_training:
            loss = custom(self.model, self._optimizer, self._losses, inputs, labels, weights)
        else:
            parts = zip(self._losses, outputs, labels, self._training["loss_weights"], strict=True)
            loss = sum(share * weighted(one, output, label, weights) for one, output, label, share in parts)
            if is_training:
                loss.backward()
                self._optimizer.step()
        return float(loss.detach()), [output.detach() for output in outputs], labels

    def _tensors(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        import torch

        return [torch.from_numpy(array).to(self._device) for array in arrays]


def weighted(loss: Any, output: Any, label: Any, weights: Any) -> Any:
    """The loss of one label: the mean over rows, each of which counts as much as its weight says."""
    import torch

    if output.dim() == label.dim() + 1 and output.shape[-1] == 1 and output.shape[0] == label.shape[0]:
        label = label.reshape(output.shape)
    if label.is_floating_point():
        label = label.to(output.dtype)
    if weights is None:
        return loss(output, label)
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        loss.reduction = "none"
        each = loss(output, label)
    else:
        each = loss(output, label, reduction="none")
    each = each.reshape(len(weights), -1).mean(dim=1)
    return (each * weights).sum() / weights.sum()


def _named(metrics: Any) -> dict[str, Callable[..., Any]]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    return {getattr(metric, "__name__", type(metric).__name__.lower()): metric for metric in metrics}


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def saved(value: Any) -> bytes:
    """What `torch.load(..., weights_only=True)` reads."""
    import torch

    written = io.BytesIO()
    torch.save(value, written)
    return written.getvalue()
