"""The parameters of estimators and models, as `pyspark.ml` knows parameters: each with `getX` and `setX`.

What a parameter is called, what it means and what it is unless set stands in one table; the rest is made from it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

from corro.spark.common._accessors import EstimatorAccessors, ModelAccessors

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EstimatorParams", "ModelParams"]

Class = TypeVar("Class", bound=type)

# No default: asking for it before it is set is an error.
_REQUIRED = object()

# name: (meaning, default)
ESTIMATOR: dict[str, tuple[str, Any]] = {
    "num_proc": ("the number of training processes; all slots of Spark, unless set", None),
    "model": ("the model to train", _REQUIRED),
    "backend": ("who runs the training processes, in place of num_proc", None),
    "store": ("where data, checkpoints and logs are kept", _REQUIRED),
    "optimizer": ("the optimizer", None),
    "loss": ("the loss, or one for each label", None),
    "loss_constructors": ("functions that make the losses, in place of loss", None),
    "loss_weights": ("how much each loss counts", None),
    "sample_weight_col": ("the column that says how much a row counts", None),
    "metrics": ("what to measure besides the loss", []),
    "feature_cols": ("the columns that go into the model", _REQUIRED),
    "label_cols": ("the columns that should come out of it", _REQUIRED),
    "continuous_cols": ("columns that hold continuous numbers", None),
    "categorical_cols": ("columns that hold categories", None),
    "validation": ("the share of rows to validate with, or the column that says so", None),
    "gradient_compression": ("how gradients are compressed", None),
    "compress_sparse_cols": ("taken, and not needed: Parquet keeps the zeros of sparse vectors small", False),
    "batch_size": ("rows in a batch of one process", 32),
    "val_batch_size": ("rows in a batch for validation; batch_size, unless set", None),
    "epochs": ("how often all rows are seen", 1),
    "verbose": ("0: quiet, 1: progress, 2: more", 1),
    "callbacks": ("callbacks of the framework", []),
    "random_seed": ("the order of rows, which rows validate, and the framework's chance", None),
    "shuffle_buffer_size": ("deprecated: how many rows are mixed with each other", None),
    "shuffle": ("whether rows come in another order in each epoch", True),
    "partitions_per_process": ("how many files for each process rows are written to, at most", 10),
    "run_id": ("the name of this training in the store; one that exists goes on from its checkpoint", None),
    "train_steps_per_epoch": ("batches in an epoch of one process; as many as there are rows for, unless set", None),
    "validation_steps_per_epoch": ("the same, for validation", None),
    "transformation_fn": ("takes and gives a pandas.DataFrame: what happens to rows before they are batches", None),
    "transformation_edit_fields": ("taken, and not needed: types are seen", None),
    "transformation_removed_fields": ("taken, and not needed: columns are seen", None),
    "train_reader_num_workers": ("taken, and not needed: one thread reads ahead, and Arrow's own decode", 2),
    "val_reader_num_workers": ("the same, for validation", 2),
    "reader_pool_type": ("taken, and not needed", "thread"),
    "label_shapes": ("the shape of each label, without the batch's size", None),
    "inmemory_cache_all": ("whether each process keeps its rows in memory after the first epoch", False),
    "use_gpu": ("whether to train on a GPU where there is one", True),
    "mp_start_method": ("taken, and not needed: nothing forks", None),
    "backward_passes_per_step": ("batches that are added up before gradients are averaged", 1),
    "tensorflow_dataset_prefetch_buffer_size": ("taken, and not needed: a thread reads ahead", 0),
    "data_module": ("a class that gives batches, in place of ParquetDataModule", None),
}

MODEL: dict[str, tuple[str, Any]] = {
    "model": ("the trained model", _REQUIRED),
    "history": ("what was measured in each epoch", None),
    "run_id": ("the name of the training in its store", None),
    "feature_columns": ("the columns that go into the model", _REQUIRED),
    "label_columns": ("the columns whose predictions come out of it", _REQUIRED),
    "output_cols": ("how predictions are called: <label>__output, unless set", None),
    "batch_size": ("rows that the model is given at once", 1024),
    "use_gpu": ("whether to predict on a GPU where there is one", False),
    "_metadata": ("taken, and not needed: columns are seen", None),
}


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _accessors(name: str, meaning: str) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    def get(self: Any) -> Any:
        return self.getOrDefault(name)

    def put(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    get.__doc__ = f"`{name}`: {meaning}."
    put.__doc__ = f"Sets `{name}`: {meaning}."
    return get, put


def with_params(table: Mapping[str, tuple[str, Any]]) -> Callable[[Class], Class]:
    """Gives a class the parameters of a table."""

    def decorate(cls: Any) -> Any:
        for name, (meaning, _) in table.items():
            # `Params` finds what a class has by this kind of attribute.
            setattr(cls, name, Param(Params._dummy(), name, meaning, TypeConverters.identity))
            get, put = _accessors(name, meaning)
            setattr(cls, f"get{_camel(name)}", get)
            setattr(cls, f"set{_camel(name)}", put)
        cls._tables = {**getattr(cls, "_tables", {}), **table}
        return cls

    return decorate


class _Tabled(Params):
    """Parameters whose defaults stand in a table."""

    _tables: ClassVar[dict[str, tuple[str, Any]]] = {}

    def __init__(self) -> None:
        super().__init__()
        # A list that stands for "none" is not shared by those who have it.
        given = {name: default for name, (_, default) in self._tables.items() if default is not _REQUIRED}
        self._setDefault(**{n: list(d) if isinstance(d, list) else d for n, d in given.items()})

    def _given(self, values: Mapping[str, Any]) -> None:
        """What was given to the constructor, by name."""
        unknown = [name for name in values if name not in self._tables]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no parameter {', '.join(unknown)}.")
        self._set(**values)

    def _ask(self, name: str) -> Any:
        """A parameter's value; None if it was not set."""
        param = self.getParam(name)
        return self.getOrDefault(param) if self.isSet(param) or self.hasDefault(param) else None


@with_params(ESTIMATOR)
class EstimatorParams(_Tabled, EstimatorAccessors):
    """What all estimators share, and what is wrong if it is wrong."""

    def setParams(self, **kwargs: Any) -> Self:  # noqa: N802 - Spark's way to name it
        """Several parameters at once, by name."""
        self._given(kwargs)
        return self

    def _check(self) -> None:
        for name in ("model", "store", "feature_cols", "label_cols"):
            if self._ask(name) is None:
                raise ValueError(
                    f"{type(self).__name__} needs {name}: set{_camel(name)}(...), or {name}=... when it is made."
                )
        if self._ask("backend") is not None and self._ask("num_proc") is not None:
            raise ValueError("backend and num_proc were both given: a backend knows its number of processes.")
        if self._ask("loss") is not None and self._ask("loss_constructors") is not None:
            raise ValueError("loss and loss_constructors were both given: give only one of them.")
        if int(self._ask("backward_passes_per_step")) <= 0:
            raise ValueError(f"backward_passes_per_step is {self._ask('backward_passes_per_step')}: give 1 or more.")
        for name in ("batch_size", "epochs"):
            if int(self._ask(name)) < 1:
                raise ValueError(f"{name} is {self._ask(name)}: give 1 or more.")
        if self._ask("shuffle_buffer_size") is not None:
            warnings.warn("shuffle_buffer_size is deprecated: give shuffle.", DeprecationWarning, stacklevel=3)
        run_id = self._ask("run_id")
        if run_id is not None and not re.fullmatch(r"[\w.-]+", run_id):
            raise ValueError(
                f"run_id is {run_id!r}: it names a folder, so use letters, digits, dots, dashes and underscores only."
            )

    def _weights(self) -> list[float]:
        """How much each label's loss counts."""
        labels, weights = self._ask("label_cols"), self._ask("loss_weights")
        if weights is None:
            return [1.0 / len(labels)] * len(labels)
        if len(weights) != len(labels):
            raise ValueError(f"there are {len(labels)} labels and {len(weights)} loss_weights: give one for each.")
        return [float(weight) for weight in weights]


@with_params(MODEL)
class ModelParams(_Tabled, ModelAccessors):
    """What all trained models share."""

    def _outputs(self) -> list[str]:
        labels = self._ask("label_columns")
        names = self._ask("output_cols") or [f"{label}__output" for label in labels]
        if len(names) != len(labels):
            raise ValueError(f"there are {len(labels)} labels and {len(names)} output_cols: give one for each.")
        return list(names)
