"""Training a model of PyTorch's on Spark, and predicting with it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle

from corro.spark.common._training import Training, as_input
from corro.spark.common.estimator import HorovodEstimator, HorovodModel
from corro.spark.common.params import with_params
from corro.spark.torch._training import train

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TorchEstimator", "TorchModel"]

_MORE = {
    "input_shapes": ("the shape of each feature, without the batch's size or with -1 for it", None),
    "train_minibatch_fn": (
        "takes model, optimizer, losses, inputs, labels and weights; trains, and gives the loss",
        None,
    ),
}


@with_params(_MORE)
class TorchEstimator(HorovodEstimator["TorchModel"]):
    """Trains a `torch.nn.Module` on the processes of `corro.spark.run`, each with its share of a DataFrame's rows.

    `optimizer` is one of the model's own parameters; its learning rate is multiplied by the number of processes. `loss` is a
    function or module of output and label, or a list with one for each of `label_cols`. `metrics` are functions of the
    same, or a dictionary of them. A callback is called after each epoch, with its number and what was measured.

    Example:
        >>> import torch
        >>> from corro.spark.common.store import Store
        >>> from corro.spark.torch import TorchEstimator
        >>> model = torch.nn.Linear(2, 1)
        >>> estimator = TorchEstimator(
        ...     model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=torch.nn.MSELoss(),
        ...     store=Store.create("/tmp/corro-store"), feature_cols=["x"], label_cols=["y"], input_shapes=[[-1, 2]],
        ... )
        >>> model = estimator.fit(df)  # doctest: +SKIP
        >>> model.transform(df).select("y__output")  # doctest: +SKIP
    """

    _prefix = "pytorch"

    if TYPE_CHECKING:  # made by `with_params`
        getInputShapes: Callable[[], Any]
        setInputShapes: Callable[[Any], Self]
        getTrainMinibatchFn: Callable[[], Any]
        setTrainMinibatchFn: Callable[[Any], Self]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._given(kwargs)

    def _check(self) -> None:
        self._check_shared()
        if self._ask("optimizer") is None:
            raise ValueError("TorchEstimator needs an optimizer of the model's parameters.")

    def _check_shared(self) -> None:
        super()._check()
        for name, columns in (("input_shapes", "feature_cols"), ("label_shapes", "label_cols")):
            shapes = self._ask(name)
            if shapes is not None and len(shapes) != len(self._ask(columns)):
                raise ValueError(
                    f"there are {len(self._ask(columns))} {columns} and {len(shapes)} {name}: one for each."
                )

    def _training(self, training: Training) -> Callable[[], Any]:
        # In one pickle, so that the optimizer's parameters stay the model's.
        return partial(train, training, cloudpickle.dumps((self._ask("model"), self._ask("optimizer"), self._losses())))

    def _model(self, training: Training, result: Any) -> TorchModel:
        import torch

        weights, history, shapes = result
        model = cloudpickle.loads(cloudpickle.dumps(self._ask("model"))).cpu()
        model.load_state_dict(torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True))
        return TorchModel(
            model=model,
            history=history,
            run_id=training.run_id,
            feature_columns=self._ask("feature_cols"),
            label_columns=self._ask("label_cols"),
            input_shapes=self._ask("input_shapes"),
            output_shapes=shapes,
        )


@with_params(
    {
        "input_shapes": ("the shape of each feature, without the batch's size or with -1 for it", None),
        "output_shapes": ("the shape of a prediction for one row, for each label", None),
    }
)
class TorchModel(HorovodModel):
    """What `TorchEstimator` has trained: `getModel()` is the module itself.

    Example:
        >>> import torch
        >>> from corro.spark.torch import TorchModel
        >>> TorchModel(model=torch.nn.Linear(2, 1), feature_columns=["x"], label_columns=["y"]).getFeatureColumns()
        ['x']
    """

    if TYPE_CHECKING:  # made by `with_params`
        getInputShapes: Callable[[], Any]
        setInputShapes: Callable[[Any], Self]
        getOutputShapes: Callable[[], Any]
        setOutputShapes: Callable[[Any], Self]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._given(kwargs)

    def _shapes(self) -> Sequence[Sequence[int]] | None:
        return self._ask("output_shapes")

    def _predictor(self) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
        import torch

        names, on_gpu = self._ask("feature_columns"), self._ask("use_gpu")
        shapes = self._ask("input_shapes") or [None] * len(names)
        device = torch.device("cuda" if on_gpu and torch.cuda.is_available() else "cpu")
        model = self._ask("model").to(device).eval()

        def predict(columns: Mapping[str, Any]) -> Sequence[Any]:
            with torch.no_grad():
                given = [as_input(columns[name], shape) for name, shape in zip(names, shapes, strict=True)]
                outputs = model(*[torch.from_numpy(array).to(device) for array in given])
            outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
            return [output.cpu().numpy() for output in outputs]

        return predict
