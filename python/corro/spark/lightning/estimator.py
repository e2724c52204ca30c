"""Training a module of PyTorch Lightning's on Spark, and predicting with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle

from corro.spark.common._training import Training
from corro.spark.common.params import with_params
from corro.spark.lightning._training import package_of, train
from corro.spark.torch import estimator as plain

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LightningEstimator", "LightningModel", "TorchEstimator", "TorchModel"]

TorchModel = plain.TorchModel
LightningModel = plain.TorchModel


@with_params(
    {
        "num_gpus": ("GPUs of one process; 1, unless set", None),
        "logger": ("Lightning's logger, or a list of them", None),
        "log_every_n_steps": ("how often Lightning logs", 50),
        "loader_num_epochs": ("taken, and not needed: loaders begin anew with each epoch", None),
        "terminate_on_nan": ("whether a logged value that is not a number ends the training", False),
        "profiler": ("Lightning's profiler", None),
        "trainer_args": ("more arguments for Lightning's Trainer, which go before all others", None),
        "debug_data_loader": ("taken, and not needed", False),
        "train_async_data_loader_queue_size": ("taken, and not needed: a thread reads ahead", None),
        "val_async_data_loader_queue_size": ("taken, and not needed: a thread reads ahead", None),
    }
)
class TorchEstimator(plain.TorchEstimator):
    """Trains a `LightningModule` on the processes of `corro.spark.run`, each with its share of a DataFrame's rows.

    A batch is a dictionary of tensors, by column. The module makes its own optimizers, whose learning rates are not changed;
    what it logs is the history. `callbacks` are Lightning's. A plain `torch.nn.Module` is trained as well, with `optimizer`
    and `loss`. `LightningEstimator` is another name for this class.

    Example:
        >>> import lightning, torch
        >>> from corro.spark.common.store import Store
        >>> from corro.spark.lightning import TorchEstimator
        >>> class Line(lightning.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(2, 1)
        ...     def forward(self, x):
        ...         return self.layer(x)
        ...     def training_step(self, batch, number):
        ...         return torch.nn.functional.mse_loss(self(batch["x"])[:, 0], batch["y"])
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> estimator = TorchEstimator(
        ...     model=Line(), store=Store.create("/tmp/corro-store"), feature_cols=["x"], label_cols=["y"],
        ... )
        >>> model = estimator.fit(df)  # doctest: +SKIP
    """

    if TYPE_CHECKING:  # made by `with_params`
        getNumGpus: Callable[[], int | None]
        setNumGpus: Callable[[int | None], Self]
        getLogger: Callable[[], Any]
        setLogger: Callable[[Any], Self]
        getLogEveryNSteps: Callable[[], int]
        setLogEveryNSteps: Callable[[int], Self]
        getLoaderNumEpochs: Callable[[], Any]
        setLoaderNumEpochs: Callable[[Any], Self]
        getTerminateOnNan: Callable[[], bool]
        setTerminateOnNan: Callable[[bool], Self]
        getProfiler: Callable[[], Any]
        setProfiler: Callable[[Any], Self]
        getTrainerArgs: Callable[[], dict[str, Any] | None]
        setTrainerArgs: Callable[[dict[str, Any] | None], Self]
        getDebugDataLoader: Callable[[], bool]
        setDebugDataLoader: Callable[[bool], Self]
        getTrainAsyncDataLoaderQueueSize: Callable[[], Any]
        setTrainAsyncDataLoaderQueueSize: Callable[[Any], Self]
        getValAsyncDataLoaderQueueSize: Callable[[], Any]
        setValAsyncDataLoaderQueueSize: Callable[[Any], Self]

    def _check(self) -> None:
        if package_of(self._ask("model")) is None:
            super()._check()
            return
        for name in ("optimizer", "loss", "loss_constructors", "loss_weights"):
            if self._ask(name) is not None:
                raise ValueError(f"{name} was given with a LightningModule, which has its own.")
        self._check_shared()

    def _training(self, training: Training) -> Callable[[], Any]:
        is_plain = package_of(self._ask("model")) is None
        losses = self._losses() if is_plain else None
        return partial(train, training, cloudpickle.dumps((self._ask("model"), self._ask("optimizer"), losses)))


LightningEstimator = TorchEstimator
