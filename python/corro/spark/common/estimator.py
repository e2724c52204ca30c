"""What all estimators do alike: rows to the store, training processes, a model; and what all models do: predict.

A framework's estimator says how one process trains (`_training`) and what becomes of its result (`_model`); a framework's
model says how a batch becomes predictions (`_predictor`).
"""

from __future__ import annotations

import math
import tempfile
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param

from corro.spark._spark_job import active_context
from corro.spark.common._prepare import prepare
from corro.spark.common._saving import Saved
from corro.spark.common._sizes import check_sizes, column_sizes
from corro.spark.common._training import Training
from corro.spark.common.backend import Backend, SparkBackend
from corro.spark.common.params import EstimatorParams, ModelParams
from corro.spark.common.util import to_list

__all__ = ["HorovodEstimator", "HorovodModel"]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TrainedModel = TypeVar("TrainedModel", bound="HorovodModel")


class HorovodEstimator(Estimator[TrainedModel], EstimatorParams, Saved):
    """Trains on all processes of a backend, and gives a model. See `TorchEstimator` and its kin."""

    _prefix = "run"

    if TYPE_CHECKING:
        # Spark's own, whose `params` strict checkers take for unknown in part.
        @overload
        def fit(self, dataset: DataFrame, params: dict[Param[Any], Any] | None = None) -> TrainedModel: ...
        @overload
        def fit(
            self, dataset: DataFrame, params: list[dict[Param[Any], Any]] | tuple[dict[Param[Any], Any], ...]
        ) -> list[TrainedModel]: ...
        def fit(self, dataset: DataFrame, params: Any = None) -> Any: ...

    def fit_on_parquet(
        self, params: Mapping[Param[Any], Any] | None = None, dataset_idx: int | None = None
    ) -> TrainedModel:
        """As `fit`, with Parquet files that are in the store already, at its train and validation paths."""
        if params:
            return self.copy(dict(params)).fit_on_parquet(dataset_idx=dataset_idx)
        self._check()
        store = self._ask("store")
        train, val = store.get_train_data_path(dataset_idx), store.get_val_data_path(dataset_idx)
        if not store.is_parquet_dataset(train):
            raise ValueError(f"there are no Parquet files at {train}: write them there, or call fit(df).")
        return self._train(train, val if self._ask("validation") and store.is_parquet_dataset(val) else None)

    def _fit(self, dataset: Any) -> TrainedModel:
        self._check()
        store = self._ask("store")
        weight = self._ask("sample_weight_col")
        columns = [*self._ask("feature_cols"), *self._ask("label_cols"), *([weight] if weight else [])]
        backend = self._backend()
        if isinstance(backend, SparkBackend):
            active_context()  # whoever has none is told so before rows are written
        partitions = backend.num_processes() * int(self._ask("partitions_per_process"))
        # A transformation may look at columns that the model does not see.
        if self._ask("transformation_fn") is not None:
            columns = [name for name in dataset.columns if name != self._ask("validation")]
        validation = self._ask("validation")
        ready = prepare(dataset, store, columns, validation, partitions, self._ask("random_seed"))
        val = store.get_val_data_path(ready.idx) if ready.val_rows else None
        return self._train(store.get_train_data_path(ready.idx), val)

    def _train(self, train_dir: str, val_dir: str | None) -> TrainedModel:
        store = self._ask("store")
        run_id = self._ask("run_id") or f"{self._prefix}_{time.time_ns() // 1_000_000}"
        training = Training(store, run_id, train_dir, val_dir, self._options())
        # What a transformation makes of columns, and what a data module reads, only they know.
        if training["transformation_fn"] is None and training["data_module"] is None:
            sizes = column_sizes(store, train_dir, training.columns())
            check_sizes(sizes, training["feature_cols"], training.options.get("input_shapes"))
            check_sizes(sizes, training["label_cols"], training["label_shapes"])
        results = self._run(training)
        return self._model(training, results[0])._resetUid(self.uid)

    def _run(self, training: Training) -> list[Any]:
        """By the backend. On Spark the launcher also writes what was measured, for TensorBoard, and what ranks print."""
        backend, train = self._backend(), self._training(training)
        if not isinstance(backend, SparkBackend) or not training.store.saving_runs():
            return backend.run(train, env=self._env())
        with tempfile.TemporaryDirectory(prefix="corro-logs-") as folder:
            try:
                return backend.run(train, env=self._env(), logdir=folder)
            finally:
                training.keep_logs(folder)

    def _options(self) -> dict[str, Any]:
        """All parameters that processes may want, but for those that only the driver can use."""
        kept = {name: self._ask(name) for name in self._tables if name not in ("model", "backend", "store", "num_proc")}
        return {**kept, "loss_weights": self._weights()}

    def _losses(self) -> list[Any]:
        """One for each label."""
        made, given = self._ask("loss_constructors"), self._ask("loss")
        if made is not None:
            given = [make() for make in (made if isinstance(made, (list, tuple)) else [made])]
        if given is None:
            raise ValueError(f"{type(self).__name__} needs a loss.")
        return to_list(given, len(self._ask("label_cols")))

    def _backend(self) -> Backend:
        return self._ask("backend") or SparkBackend(self._ask("num_proc"), verbose=int(self._ask("verbose")))

    def _env(self) -> dict[str, str] | None:
        return None

    def _training(self, training: Training) -> Callable[[], Any]:
        """What each process runs. The result of rank 0 goes to `_model`."""
        raise NotImplementedError

    def _model(self, training: Training, result: Any) -> TrainedModel:
        raise NotImplementedError


class HorovodModel(Model, ModelParams, Saved):
    """A trained model: `transform` adds its predictions to a DataFrame, as columns `<label>__output`."""

    if TYPE_CHECKING:
        # As `fit`.
        def transform(self, dataset: DataFrame, params: dict[Param[Any], Any] | None = None) -> DataFrame: ...

    def getHistory(self) -> Any:  # noqa: N802 - Spark's way to name it
        """What was measured: a list with a number for each epoch, by name."""
        return self._ask("history")

    def getRunId(self) -> str | None:  # noqa: N802 - Spark's way to name it
        return self._ask("run_id")

    def _predictor(self) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
        """A function that takes columns as arrays and gives an array for each label; called in each of Spark's tasks."""
        raise NotImplementedError

    def _shapes(self) -> Sequence[Sequence[int]] | None:
        """The shape of a prediction for one row, for each label, as far as that is known."""
        raise NotImplementedError

    def _transform(self, dataset: Any) -> Any:
        import pandas as pd
        from pyspark.ml.functions import array_to_vector, vector_to_array
        from pyspark.ml.linalg import VectorUDT
        from pyspark.sql import functions, types

        features, names = self._ask("feature_columns"), self._outputs()
        missing = [name for name in features if name not in dataset.columns]
        if missing:
            raise ValueError(f"the DataFrame has no column {', '.join(missing)}; it has {', '.join(dataset.columns)}.")
        kinds = {field.name: field.dataType for field in dataset.schema.fields}

        def plain(name: str) -> Any:
            column = functions.col(f"`{name}`")
            return vector_to_array(column).alias(name) if isinstance(kinds[name], VectorUDT) else column

        given = functions.struct(*[plain(name) for name in features])
        # A model that knows no shapes is tried on the first row.
        widths = _widths(self._shapes() or self._tried(dataset.select(given.alias("row")).select("row.*")))
        if len(widths) != len(names):
            raise ValueError(f"the model gives {len(widths)} arrays, but there are {len(names)} label_columns.")
        number = types.DoubleType()
        fields = [
            types.StructField(f"c{at}", number if width is None else types.ArrayType(number))
            for at, width in enumerate(widths)
        ]
        make, rows = self._predictor, int(self._ask("batch_size"))

        def predict(frames: Iterator[Any]) -> Iterator[Any]:
            predictor = make()
            for frame in frames:
                pieces = [frame.iloc[at : at + rows] for at in range(0, len(frame), rows)]
                parts = [_as_frame(predictor(_arrays(piece)), widths) for piece in pieces]
                yield pd.concat(parts) if parts else pd.DataFrame({f"c{at}": [] for at in range(len(widths))})

        # Spark learns from them what is given and taken. As text they would be looked up where pandas is not imported.
        predict.__annotations__ = {"frames": typing.Iterator[pd.DataFrame], "return": typing.Iterator[pd.DataFrame]}
        udf = functions.pandas_udf(predict, types.StructType(fields))  # type: ignore[call-overload]
        whole = dataset.withColumn("__corro__", udf(given))
        for at, (name, label) in enumerate(zip(names, self._ask("label_columns"), strict=True)):
            column = functions.col(f"__corro__.c{at}")
            is_vector = isinstance(kinds.get(label), VectorUDT) and widths[at] is not None
            whole = whole.withColumn(name, array_to_vector(column) if is_vector else column)
        return whole.drop("__corro__")

    def _tried(self, features: Any) -> list[Sequence[int]]:
        first = features.limit(1).toPandas()
        if not len(first):
            raise ValueError("the shapes of predictions are not known, and there is no row to try the model on.")
        return [output.shape[1:] for output in self._predictor()(_arrays(first))]


def _widths(shapes: Sequence[Sequence[int]]) -> list[int | None]:
    """For each label how many numbers a prediction has; None: one, and no list."""
    sizes = [math.prod(int(length) for length in shape) for shape in shapes]
    return [None if size == 1 else size for size in sizes]


def _arrays(frame: Any) -> dict[str, Any]:
    from corro.spark.common._reader import stacked

    return {str(name): stacked(frame[name].to_numpy()) for name in frame.columns}


def _as_frame(outputs: Sequence[Any], widths: Sequence[int | None]) -> Any:
    import numpy as np
    import pandas as pd

    columns = {}
    for at, (output, width) in enumerate(zip(outputs, widths, strict=True)):
        array = np.asarray(output, dtype=np.float64)
        columns[f"c{at}"] = array.reshape(len(array)) if width is None else list(array.reshape(len(array), -1))
    return pd.DataFrame(columns)
