"""How one process trains a module of Lightning's: by a `Trainer` with Corro's strategy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

from corro.spark.common._training import History, Training
from corro.spark.torch._training import device_for, saved, weighted

__all__ = ["package_of", "train"]


def package_of(model: Any) -> str | None:
    """Which of Lightning's two names a module has its class from; None if it is not Lightning's."""
    for base in type(model).__mro__:
        if base.__name__ == "LightningModule":
            return base.__module__.split(".", maxsplit=1)[0]
    return None


def train(training: Training, pickled: bytes) -> tuple[bytes, History, list[list[int]]]:
    """Gives the trained weights, what was logged, and the shapes of what the model puts out for a row."""
    import importlib

    import cloudpickle
    import torch

    import corro.torch as hvd

    hvd.init()
    if training["random_seed"] is not None:
        torch.manual_seed(int(training["random_seed"]))
    given, optimizer, losses = cloudpickle.loads(pickled)
    package = package_of(given) or "lightning"
    lightning = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
    module = given if package_of(given) else _wrapped(lightning, training, given, optimizer, losses)
    with training.data(hvd.rank(), hvd.size()) as data, _folder() as folder:
        loaders = [_loader(training, data.train_data())]
        if training.val_dir is not None:
            loaders.append(_loader(training, data.val_data()))
        keeper = _keeper(lightning, training, folder)
        trainer = _trainer(lightning, package, training, keeper, folder)
        path = _restored(training, folder)
        trainer.fit(module, *loaders, ckpt_path=path)
        if keeper.failed is not None:
            raise keeper.failed
        shapes = _shapes(training, given, loaders[0])
    weights = {name: tensor.cpu() for name, tensor in given.state_dict().items()}
    return saved(weights), keeper.history, shapes


def _folder() -> Any:
    import tempfile

    return tempfile.TemporaryDirectory(prefix="corro-lightning-")


def _trainer(lightning: Any, package: str, training: Training, keeper: Any, folder: str) -> Any:
    from corro.lightning import strategy_for

    on_gpu = device_for(training).type == "cuda"
    compression = training["gradient_compression"]
    options = {"compression": compression} if compression is not None else {}
    arguments = {
        "strategy": strategy_for(package)(**options),
        "accelerator": "gpu" if on_gpu else "cpu",
        "devices": training["num_gpus"] or 1,
        "max_epochs": int(training["epochs"]),
        "accumulate_grad_batches": int(training["backward_passes_per_step"]),
        "callbacks": [*training["callbacks"], keeper],
        "logger": training["logger"] if training["logger"] is not None else False,
        "log_every_n_steps": int(training["log_every_n_steps"]),
        "profiler": training["profiler"],
        "detect_anomaly": False,
        "default_root_dir": folder,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": bool(training["verbose"] and int(training["verbose"]) > 1),
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
    }
    return lightning.Trainer(**{**arguments, **(training["trainer_args"] or {})})


class _Batches:
    """The batches of a data module as tensors, by column, as Lightning's loops take a loader."""

    def __init__(self, training: Training, batches: Any) -> None:
        self._training = training
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import torch

        names = [*self._training["feature_cols"], *self._training["label_cols"]]
        weight = self._training["sample_weight_col"]
        for batch in self._batches:
            arrays = [*self._training.inputs(batch), *self._training.labels(batch)]
            given = dict(zip(names, map(torch.from_numpy, arrays), strict=True))
            weights = self._training.weights(batch)
            yield given if weights is None else {**given, weight: torch.from_numpy(weights)}


def _loader(training: Training, batches: Any) -> Any:
    return _Batches(training, batches)


def _wrapped(lightning: Any, training: Training, model: Any, optimizer: Any, losses: Any) -> Any:
    """A plain module with its optimizer and losses, as a module of Lightning's."""
    import corro.torch as hvd

    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * hvd.size()

    class Plain(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def configure_optimizers(self) -> Any:
            return optimizer

        def _loss(self, batch: dict[str, Any], name: str) -> Any:
            outputs = self.model(*[batch[column] for column in training["feature_cols"]])
            outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
            labels = [batch[column] for column in training["label_cols"]]
            weight = training["sample_weight_col"]
            weights = batch[weight] if weight else None
            parts = zip(losses, outputs, labels, training["loss_weights"], strict=True)
            loss = sum(share * weighted(one, out, label, weights) for one, out, label, share in parts)
            rows = len(labels[0])
            self.log(name, loss, on_step=False, on_epoch=True, sync_dist=True, batch_size=rows)
            seen = (outputs[0], labels[0]) if len(labels) == 1 else (outputs, labels)
            for metric in training["metrics"]:
                called = name.replace("loss", getattr(metric, "__name__", type(metric).__name__.lower()))
                value = metric(*seen).detach()
                self.log(called, value, on_step=False, on_epoch=True, sync_dist=True, batch_size=rows)
            return loss

        def training_step(self, batch: dict[str, Any], number: int) -> Any:
            return self._loss(batch, "loss")

        def validation_step(self, batch: dict[str, Any], number: int) -> Any:
            return self._loss(batch, "val_loss")

    return Plain()


def _keeper(lightning: Any, training: Training, folder: str) -> Any:
    """Notes down what was logged in each epoch, and has rank 0 keep what was reached."""
    import json

    import corro.torch as hvd

    class Keeper(lightning.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.history: History = {}
            self.failed: Exception | None = None

        def state_dict(self) -> dict[str, Any]:
            return {"history": json.dumps(self.history)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.history = json.loads(state["history"])

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            measured = {name: float(value) for name, value in trainer.callback_metrics.items()}
            bad = [name for name, value in measured.items() if math.isnan(value)]
            if bad and training["terminate_on_nan"]:
                self.failed = ValueError(f"{', '.join(bad)} of epoch {trainer.current_epoch + 1} is not a number.")
                trainer.should_stop = True
                return
            for name, value in measured.items():
                self.history.setdefault(name, []).append(value)

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            # What was reached by the epoch before; Lightning counts it as done only by now.
            self._keep(trainer)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self._keep(trainer)

        def _keep(self, trainer: Any) -> None:
            if not self.history or self.failed is not None:
                return
            path = os.path.join(folder, "checkpoint")
            trainer.save_checkpoint(path)  # by all ranks: the strategy may have parts on each
            if hvd.rank() == 0:
                with open(path, "rb") as file:
                    training.keep(file.read(), trainer.current_epoch, self.history)

    return Keeper()


def _restored(training: Training, folder: str) -> str | None:
    """The checkpoint of a run that was there before, as a file of this machine; all ranks read what rank 0 has found."""
    import corro.torch as hvd

    found = training.read_checkpoint() if hvd.rank() == 0 else None
    found = hvd.broadcast_object(found, root_rank=0, name="checkpoint")
    if found is None:
        return None
    path = os.path.join(folder, "before")
    with open(path, "wb") as file:
        file.write(found)
    return path


def _shapes(training: Training, model: Any, loader: Any) -> list[list[int]]:
    """Of what the model puts out for one row; the loader's first batch is asked."""
    import torch

    batch = next(iter(loader))
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    model.eval()
    with torch.no_grad():
        outputs = model(*[batch[name][:1].to(device) for name in training["feature_cols"]])
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    return [list(output.shape[1:]) for output in outputs]
