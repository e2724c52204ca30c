"""Models, losses and callbacks of the estimators' tests. A module of its own, which executors import too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corro.spark.common.backend import Backend


class Here(Backend):
    """Trains in the driver's own process, which is quick: for tests of all that is around the training."""

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, env: Any = None) -> list[Any]:
        return [fn(*args, **(kwargs or {}))]

    def num_processes(self) -> int:
        return 1


def torch_line() -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.2)


def torch_loss() -> Any:
    import torch

    return torch.nn.MSELoss()


def largest_output(output: Any, label: Any) -> Any:
    return output.max()


class Noting:
    """A callback that notes down which epochs are over."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder, "noted")

    def __call__(self, epoch: int, measured: dict[str, float]) -> None:
        assert measured["loss"] >= 0
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{epoch}\n")


def torch_two_headed() -> tuple[Any, Any, Any]:
    import torch

    class TwoHeads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())
            self.heads = torch.nn.ModuleList([torch.nn.Linear(4, 1), torch.nn.Linear(4, 2)])

        def forward(self, image: Any) -> Any:
            assert image.shape[1:] == (1, 3, 4)
            return [head(self.body(image)) for head in self.heads]

    model = TwoHeads()

    def of_class(output: Any, label: Any) -> Any:
        return torch.nn.functional.cross_entropy(output, label.long())

    return model, torch.optim.Adam(model.parameters(), lr=0.01), [torch.nn.MSELoss(), of_class]


def brighter(frame: Any) -> Any:
    frame["pixels"] = frame["pixels"].map(lambda row: row / 10)
    return frame


def keras_subclass() -> type:
    """A model of Keras' that does not know what goes in and comes out before it has seen any."""
    import keras

    class Line(keras.Model):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.layer = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.layer(x)

    return Line


def jax_line() -> dict[str, Any]:
    import numpy as np
    import optax

    def model(params: Any, x: Any) -> Any:
        return x @ params["w"] + params["b"]

    first = {"w": np.zeros((3, 1), np.float32), "b": np.zeros(1, np.float32)}
    return {
        "model": model,
        "initial_params": first,
        "optimizer": optax.sgd(0.2),
        "loss": optax.losses.squared_error,
    }


def lightning_line() -> Any:
    import lightning
    import torch

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

        def _loss(self, batch: Any, name: str) -> Any:
            each = (self(batch["features"])[:, 0] - batch["y"]) ** 2
            loss = (each * batch["weight"]).sum() / batch["weight"].sum()
            self.log(name, loss, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(each))
            return loss

        def training_step(self, batch: Any, number: int) -> Any:
            return self._loss(batch, "loss")

        def validation_step(self, batch: Any, number: int) -> Any:
            self._loss(batch, "val_loss")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.3)

    return Line()
