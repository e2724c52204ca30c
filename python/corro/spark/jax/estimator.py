"""Training a model of JAX's on Spark, and predicting with it. Horovod has no such estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle

from corro.spark.common._training import Training, as_input
from corro.spark.common.estimator import HorovodEstimator, HorovodModel
from corro.spark.common.params import with_params
from corro.spark.jax._training import apply_of, train

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["JaxEstimator", "JaxModel"]

_SHAPES = {"input_shapes": ("the shape of each feature, without the batch's size or with -1 for it", None)}


@with_params(
    {**_SHAPES, "initial_params": ("the parameters to begin with; the model's `init` makes them, unless set", None)}
)
class JaxEstimator(HorovodEstimator["JaxModel"]):
    """Trains a function `model(params, *features)`, or a Flax module, on the processes of `corro.spark.run`.

    `optimizer` is optax', and its steps are multiplied by the number of processes. `loss` is a function of output and label
    that gives a number, or one for each row, as optax' losses do; only then `sample_weight_col` counts. With several
    `label_cols` the model gives a list of outputs, and `loss` may be a list. `metrics` are functions of output and label, or
    a dictionary of them. A callback is called after each epoch, with its number and what was measured.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from corro.spark.common.store import Store
        >>> from corro.spark.jax import JaxEstimator
        >>> estimator = JaxEstimator(
        ...     model=lambda params, x: x @ params["w"], initial_params={"w": jnp.zeros((2, 1))},
        ...     optimizer=optax.sgd(0.1), loss=optax.losses.squared_error, store=Store.create("/tmp/corro-store"),
        ...     feature_cols=["x"], label_cols=["y"], batch_size=16, epochs=4,
        ... )
        >>> model = estimator.fit(df)  # doctest: +SKIP
        >>> model.transform(df).select("y__output")  # doctest: +SKIP
    """

    _prefix = "jax"

    if TYPE_CHECKING:  # made by `with_params`
        getInputShapes: Callable[[], Any]
        setInputShapes: Callable[[Any], Self]
        getInitialParams: Callable[[], Any]
        setInitialParams: Callable[[Any], Self]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._given(kwargs)

    def _check(self) -> None:
        super()._check()
        for name in ("optimizer", "loss"):
            if self._ask(name) is None and not (name == "loss" and self._ask("loss_constructors")):
                raise ValueError(f"JaxEstimator needs {name}.")
        if self._ask("initial_params") is None and not hasattr(self._ask("model"), "init"):
            raise ValueError("JaxEstimator needs initial_params: this model has no init that makes them.")

    def _training(self, training: Training) -> Callable[[], Any]:
        given = (self._ask("model"), self._ask("initial_params"), self._ask("optimizer"), self._losses())
        return partial(train, training, cloudpickle.dumps(given))

    def _model(self, training: Training, result: Any) -> JaxModel:
        params, history, shapes = result
        return JaxModel(
            model=self._ask("model"),
            trained_params=params,
            history=history,
            run_id=training.run_id,
            feature_columns=self._ask("feature_cols"),
            label_columns=self._ask("label_cols"),
            input_shapes=self._ask("input_shapes"),
            output_shapes=shapes,
        )


@with_params(
    {
        **_SHAPES,
        "trained_params": ("the trained parameters, as numpy arrays", None),
        "output_shapes": ("the shape of a prediction for one row, for each label", None),
    }
)
class JaxModel(HorovodModel):
    """What `JaxEstimator` has trained: `getTrainedParams()` are the parameters of `getModel()`.

    Example:
        >>> from corro.spark.jax import JaxModel
        >>> model = JaxModel(
        ...     model=lambda params, x: params * x, trained_params=2.0, output_shapes=[[]], feature_columns=["x"],
        ...     label_columns=["y"],
        ... )
        >>> model.getTrainedParams()
        2.0
    """

    if TYPE_CHECKING:  # made by `with_params`
        getInputShapes: Callable[[], Any]
        setInputShapes: Callable[[Any], Self]
        getTrainedParams: Callable[[], Any]
        setTrainedParams: Callable[[Any], Self]
        getOutputShapes: Callable[[], Any]
        setOutputShapes: Callable[[Any], Self]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._given(kwargs)

    def _shapes(self) -> Sequence[Sequence[int]] | None:
        return self._ask("output_shapes")

    def _predictor(self) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
        import jax
        import numpy as np

        names, params = self._ask("feature_columns"), self._ask("trained_params")
        shapes = self._ask("input_shapes") or [None] * len(names)
        apply = jax.jit(apply_of(self._ask("model")))

        def predict(columns: Mapping[str, Any]) -> Sequence[Any]:
            outputs = apply(params, *[as_input(columns[n], shape) for n, shape in zip(names, shapes, strict=True)])
            listed = outputs if isinstance(outputs, (tuple, list)) else [outputs]
            return [np.asarray(output) for output in listed]

        return predict
