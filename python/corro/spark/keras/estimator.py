"""Training a model of Keras' on Spark, and predicting with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from corro.spark.common._training import Training, as_input
from corro.spark.common.estimator import HorovodEstimator, HorovodModel
from corro.spark.common.params import with_params
from corro.spark.keras._serial import as_config, from_config, model_bytes, model_of
from corro.spark.keras._training import train

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["KerasEstimator", "KerasModel"]

_CUSTOM: dict[str, tuple[str, Any]] = {
    "custom_objects": ("classes and functions that Keras does not know, by name", {})
}


@with_params(
    {
        **_CUSTOM,
        "checkpoint_callback": ("a ModelCheckpoint of your own, whose files go to the run's folder in the store", None),
        "backend_env": ("variables for the training processes", {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"}),
    }
)
class KerasEstimator(HorovodEstimator["KerasModel"]):
    """Trains a Keras model on the processes of `corro.spark.run`, each with its share of a DataFrame's rows.

    Keras 3 on any of its backends: processes use that of the driver. `optimizer` and `loss` are what `compile` takes, or
    those that the model was compiled with; the learning rate is multiplied by the number of processes while it trains.
    `callbacks` are Keras'. The model has an input for each of `feature_cols` and an output for each of `label_cols`.

    Example:
        >>> import keras
        >>> from corro.spark.common.store import Store
        >>> from corro.spark.keras import KerasEstimator
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> estimator = KerasEstimator(
        ...     model=model, optimizer=keras.optimizers.SGD(0.1), loss="mse", store=Store.create("/tmp/corro-store"),
        ...     feature_cols=["x"], label_cols=["y"], batch_size=16, epochs=4,
        ... )
        >>> model = estimator.fit(df)  # doctest: +SKIP
        >>> model.transform(df).select("y__output")  # doctest: +SKIP
    """

    _prefix = "keras"

    if TYPE_CHECKING:  # made by `with_params`
        getCustomObjects: Callable[[], dict[str, Any]]
        setCustomObjects: Callable[[dict[str, Any]], Self]
        getCheckpointCallback: Callable[[], Any]
        setCheckpointCallback: Callable[[Any], Self]
        getBackendEnv: Callable[[], dict[str, str]]
        setBackendEnv: Callable[[dict[str, str]], Self]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._given(kwargs)

    def _check(self) -> None:
        super()._check()
        for name in ("optimizer", "loss"):
            if self._compiled(name) is None:
                raise ValueError(f"KerasEstimator needs {name}: give it, or compile the model with it.")
        model = self._ask("model")
        for count, columns, kind in (
            (len(_ends(model, "inputs")), self._ask("feature_cols"), "inputs"),
            (len(_ends(model, "outputs")), self._ask("label_cols"), "outputs"),
        ):
            if count and count != len(columns):
                raise ValueError(
                    f"the model has {count} {kind}, and there are {len(columns)} columns for them: {columns}."
                )

    def _compiled(self, name: str) -> Any:
        """A parameter, or what the model was compiled with."""
        given = self._ask(name)
        return given if given is not None else getattr(self._ask("model"), name, None)

    def _compile_arguments(self) -> dict[str, Any]:
        import keras

        weights, labels = self._ask("loss_weights"), self._ask("label_cols")
        return {
            "optimizer": as_config(keras.optimizers.get(self._compiled("optimizer"))),
            "loss": as_config(self._compiled("loss")),
            "metrics": as_config(self._ask("metrics")),
            # Keras adds losses up as they are, if nothing is said.
            "loss_weights": None if weights is None or len(labels) == 1 else self._weights(),
        }

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "input_shapes": _input_shapes(self._ask("model"))}

    def _env(self) -> dict[str, str]:
        import keras

        return {"KERAS_BACKEND": keras.backend.backend(), **(self._ask("backend_env") or {})}

    def _training(self, training: Training) -> Callable[[], Any]:
        return partial(train, training, model_bytes(self._ask("model")), self._compile_arguments())

    def _model(self, training: Training, result: Any) -> KerasModel:
        content, history = result
        known = self._ask("custom_objects")
        model = model_of(content, known)
        # With the learning rate of one process, as it was given.
        model.compile(**from_config(self._compile_arguments(), known))
        return KerasModel(
            model=model,
            history=history,
            run_id=training.run_id,
            feature_columns=self._ask("feature_cols"),
            label_columns=self._ask("label_cols"),
            custom_objects=known,
        )


@with_params(_CUSTOM)
class KerasModel(HorovodModel):
    """What `KerasEstimator` has trained: `getModel()` is the Keras model itself.

    Example:
        >>> import keras
        >>> from corro.spark.keras import KerasModel
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> KerasModel(model=model, feature_columns=["x"], label_columns=["y"]).getLabelColumns()
        ['y']
    """

    if TYPE_CHECKING:  # made by `with_params`
        getCustomObjects: Callable[[], dict[str, Any]]
        setCustomObjects: Callable[[dict[str, Any]], Self]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._given(kwargs)

    def _packed(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "model": model_bytes(values["model"])} if "model" in values else values

    @classmethod
    def _unpacked(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "model" not in values:
            return values
        return {**values, "model": model_of(values["model"], values.get("custom_objects"))}

    def _shapes(self) -> Sequence[Sequence[int]] | None:
        shapes = [output.shape[1:] for output in _ends(self._ask("model"), "outputs")]
        return None if not shapes or any(None in shape for shape in shapes) else shapes

    def _predictor(self) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
        import keras

        model, names = self._ask("model"), self._ask("feature_columns")
        shapes = _input_shapes(model) or [None] * len(names)

        def predict(columns: Mapping[str, Any]) -> Sequence[Any]:
            given = [as_input(columns[name], shape) for name, shape in zip(names, shapes, strict=True)]
            outputs = model(given[0] if len(given) == 1 else given, training=False)
            listed = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            return [keras.ops.convert_to_numpy(output) for output in listed]

        return predict


def _ends(model: Any, which: str) -> Sequence[Any]:
    """Its `inputs` or `outputs`. A subclass of `Model` has none, nor has a `Sequential` that was not told what comes in."""
    return getattr(model, which, None) or ()


def _input_shapes(model: Any) -> list[list[int] | None] | None:
    """What each input wants, as far as the model knows before it has seen any."""
    shapes = [list(given.shape[1:]) for given in _ends(model, "inputs")]
    return [None if None in shape else [-1, *shape] for shape in shapes] or None
