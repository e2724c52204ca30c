"""Estimators for Keras, JAX and Lightning on a real Spark, and what all of them refuse."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import spark_models as models
from estimator_checks import check_history, check_predictions, common

# Most of it is the import of frameworks, by every process anew.
pytestmark = pytest.mark.timeout(900)


def test_keras(spark: Any, rows: Any, tmp_path: Path) -> None:
    import keras

    from corro.spark.keras import KerasEstimator, KerasModel

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    given = common(tmp_path, metrics=["mae"], run_id="first", transformation_fn=None)
    rate = keras.optimizers.SGD(0.2)
    estimator = KerasEstimator(model=model, optimizer=rate, loss="mse", **given)
    trained = estimator.fit(rows)
    check_history(trained.getHistory())
    assert len(trained.getHistory()["val_mae"]) == 12
    check_predictions(trained, rows)
    assert float(trained.getModel().optimizer.learning_rate) == pytest.approx(0.2)
    longer = estimator.setEpochs(13).fit(rows)
    assert longer.getHistory()["loss"][:12] == trained.getHistory()["loss"]
    trained.write().overwrite().save(str(tmp_path / "saved"))
    check_predictions(KerasModel.load(str(tmp_path / "saved")), rows)


def test_keras_models_that_know_no_shapes(spark: Any, rows: Any, tmp_path: Path) -> None:
    import keras

    from corro.spark.keras import KerasEstimator

    kind = models.keras_subclass()
    given = common(tmp_path, custom_objects={"Line": kind})
    given |= {"num_proc": None, "backend": models.Here(), "optimizer": keras.optimizers.SGD(0.2), "loss": "mse"}
    for model in (kind(), keras.Sequential([keras.layers.Dense(1)])):
        estimator = KerasEstimator(model=model, **given, run_id=type(model).__name__)
        trained = estimator.fit(rows)
        check_history(trained.getHistory())
        check_predictions(trained, rows)
        assert estimator.setEpochs(13).fit(rows).getHistory()["loss"][:12] == trained.getHistory()["loss"]


def test_jax(spark: Any, rows: Any, tmp_path: Path) -> None:
    from corro.spark.jax import JaxEstimator, JaxModel

    estimator = JaxEstimator(**models.jax_line(), **common(tmp_path, run_id="first"))
    trained = estimator.fit(rows)
    check_history(trained.getHistory())
    check_predictions(trained, rows)
    longer = estimator.setEpochs(13).fit(rows)
    assert longer.getHistory()["loss"][:12] == trained.getHistory()["loss"]
    trained.write().overwrite().save(str(tmp_path / "saved"))
    check_predictions(JaxModel.load(str(tmp_path / "saved")), rows)


def test_lightning(spark: Any, rows: Any, tmp_path: Path) -> None:
    from corro.spark.lightning import TorchEstimator

    estimator = TorchEstimator(model=models.lightning_line(), **common(tmp_path, run_id="first"))
    trained = estimator.fit(rows)
    check_history(trained.getHistory())
    check_predictions(trained, rows)
    longer = estimator.setEpochs(13).fit(rows)
    assert longer.getHistory()["loss"][:12] == trained.getHistory()["loss"]
    assert len(longer.getHistory()["loss"]) == 13


def test_what_is_wrong_is_said_before_anything_runs(application: Any, rows: Any, tmp_path: Path) -> None:
    import keras

    from corro.spark.common.backend import SparkBackend
    from corro.spark.keras import KerasEstimator
    from corro.spark.lightning import TorchEstimator as LightningEstimator
    from corro.spark.torch import TorchEstimator

    model, optimizer = models.torch_line()
    right = {**common(tmp_path), "model": model, "optimizer": optimizer, "loss": models.torch_loss()}

    def fails(match: str, kind: Any = TorchEstimator, **changed: Any) -> None:
        with pytest.raises(ValueError, match=match):
            kind(**{**right, **changed}).fit(rows)

    fails("needs model", model=None)
    fails("both given", backend=SparkBackend(2))
    fails("both given", loss_constructors=[models.torch_loss])
    fails("no column z", feature_cols=["z"])
    fails("1 feature_cols and 2 input_shapes", input_shapes=[[3], [3]])
    fails("column features has 3 numbers in each row, but the model wants 4", input_shapes=[[-1, 4]])
    fails("column y has 1 numbers in each row, but the model wants 2", label_shapes=[[2]])
    fails("validation is 1.5", validation=1.5)
    fails("validation names the column", validation="nothing")
    fails("backward_passes_per_step is 0", backward_passes_per_step=0)
    fails("which has its own", LightningEstimator, model=models.lightning_line(), loss=None)
    line = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    fails("needs optimizer", KerasEstimator, model=line, optimizer=None, loss="mse")
    wide = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    fails("column features has 3 numbers", KerasEstimator, model=wide, optimizer="sgd", loss="mse")
    fails("1 inputs, and there are 2 columns", KerasEstimator, model=line, feature_cols=["features", "weight"])
    with pytest.raises(TypeError, match="no parameter colour"):
        TorchEstimator(colour="red")


def test_horovods_names() -> None:
    import corro.spark.torch
    import horovod.spark.common.backend
    import horovod.spark.common.estimator
    import horovod.spark.common.params
    import horovod.spark.common.util
    import horovod.spark.keras.datamodule
    import horovod.spark.lightning
    import horovod.spark.torch.datamodule

    assert horovod.spark.torch.TorchEstimator is corro.spark.torch.TorchEstimator
    for module in (horovod.spark.keras.datamodule, horovod.spark.torch.datamodule):
        assert issubclass(module.NVTabularDataModule, module.PetastormDataModule)
    for kind in (horovod.spark.torch.TorchEstimator, horovod.spark.keras.KerasEstimator):
        estimator = kind()
        assert (estimator.getBatchSize(), estimator.getPartitionsPerProcess(), estimator.getEpochs()) == (32, 10, 1)


@pytest.mark.parametrize("where", ["torch", "keras", "jax", "lightning"])
def test_checkers_know_all_parameters(where: str) -> None:
    """`getX` and `setX` are made while the program runs, and written down for type checkers: none more, and none less."""
    module = importlib.import_module(f"corro.spark.{where}")
    for kind in (getattr(module, name) for name in module.__all__):
        made = {
            f"{verb}{''.join(word.capitalize() for word in name.split('_'))}"
            for name in kind._tables
            for verb in ("get", "set")
        }
        tree = [ast.parse(inspect.getsource(owner)) for owner in kind.__mro__ if owner.__module__.startswith("corro.")]
        written = [node for part in tree for node in ast.walk(part) if isinstance(node, ast.AnnAssign)]
        methods = {"getHistory", "getRunId"} if "history" in kind._tables else set()
        told = {node.target.id for node in written if isinstance(node.target, ast.Name)}
        assert {name for name in told if name[:3] in ("get", "set")} | methods == made, kind
