"""Estimators on a real Spark: from DataFrames to trained models and predictions, in pipelines too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spark_models as models

from corro.spark.common.store import Store

# Most of it is the import of frameworks, by every process anew.
pytestmark = pytest.mark.timeout(900)

WEIGHTS = np.array([1.0, -2.0, 3.0])


@pytest.fixture(scope="module")
def rows(application: Any) -> Any:
    """`y` is a line through `features`; every tenth row is wrong, and says by `weight` that it does not count."""
    from pyspark.ml.linalg import Vectors

    chance = np.random.default_rng(5)
    x = chance.random((300, 3))
    wrong = np.arange(300) % 10 == 0
    y = np.where(wrong, 100.0, x @ WEIGHTS + 0.5)
    data = [
        (Vectors.sparse(3, [0, 1, 2], list(map(float, a))) if n % 2 else Vectors.dense(a), float(b), 0.0 if c else 1.0,
         n % 5 == 0)
        for n, (a, b, c) in enumerate(zip(x, y, wrong, strict=True))
    ]  # fmt: skip
    frame = application.createDataFrame(data, ["features", "y", "weight", "held_out"]).repartition(4).cache()
    frame.count()
    return frame


def common(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {
        "store": Store.create(str(tmp_path)), "feature_cols": ["features"], "label_cols": ["y"], "num_proc": 2,
        "batch_size": 15, "epochs": 12, "verbose": 0, "random_seed": 1, "sample_weight_col": "weight",
        "validation": "held_out", **more,
    }  # fmt: skip


def check_predictions(model: Any, rows: Any, limit: float = 0.2) -> None:
    """All columns are there, in their order, and predictions are right where rows are."""
    predicted = model.transform(rows)
    assert predicted.columns == [*rows.columns, "y__output"]
    pairs = [(row["y"], row["y__output"]) for row in predicted.filter("weight > 0").collect()]
    assert len(pairs) == 270
    assert max(abs(y - given) for y, given in pairs) < limit


def check_history(history: dict[str, list[float]], epochs: int = 12) -> None:
    assert len(history["loss"]) == len(history["val_loss"]) == epochs
    assert history["loss"][-1] < history["loss"][0] / 5
    # The rows that are wrong would add thousands.
    assert history["val_loss"][-1] < 1


def test_torch_with_weights_validation_metrics_and_resume(spark: Any, rows: Any, tmp_path: Path) -> None:
    from corro.spark.torch import TorchEstimator, TorchModel

    model, optimizer = models.torch_line()
    given = common(tmp_path, metrics=[models.largest_output], run_id="first", callbacks=[models.Noting(str(tmp_path))])
    estimator = TorchEstimator(model=model, optimizer=optimizer, loss=models.torch_loss(), **given)
    trained = estimator.fit(rows)
    check_history(trained.getHistory())
    check_predictions(trained, rows)
    assert len(trained.getHistory()["largest_output"]) == 12
    assert trained.getRunId() == "first"
    # Both processes were called back after each epoch.
    assert sorted((tmp_path / "noted").read_text().split()) == sorted([str(n) for n in range(1, 13)] * 2)
    # The same rows are not written twice, and the same run goes on where it was.
    folders = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("intermediate"))
    assert folders == ["intermediate_train_data.0", "intermediate_val_data.0"]
    longer = estimator.setEpochs(14).fit(rows)
    assert longer.getHistory()["loss"][:12] == trained.getHistory()["loss"]
    assert len(longer.getHistory()["loss"]) == 14
    assert folders == sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("intermediate"))
    logged = json.loads((tmp_path / "runs" / "first" / "logs" / "history.json").read_text())
    assert logged["epoch"] == 14
    # From the files alone, by another name.
    again = estimator.copy().setRunId("second").setEpochs(2).fit_on_parquet(dataset_idx=0)
    assert len(again.getHistory()["val_loss"]) == 2
    trained.write().overwrite().save(str(tmp_path / "saved"))
    check_predictions(TorchModel.load(str(tmp_path / "saved")), rows)


def test_torch_in_a_pipeline_with_cross_validation(spark: Any, rows: Any, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.feature import StandardScaler
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

    from corro.spark.torch import TorchEstimator

    right = rows.filter("weight > 0")
    model, optimizer = models.torch_line()
    given = common(tmp_path, feature_cols=["scaled"], sample_weight_col=None, validation=None)
    given |= {"num_proc": None, "backend": models.Here()}
    estimator = TorchEstimator(model=model, optimizer=optimizer, loss=models.torch_loss(), **given)
    pipeline = Pipeline(stages=[StandardScaler(withMean=True, inputCol="features", outputCol="scaled"), estimator])
    grid = ParamGridBuilder().addGrid(estimator.epochs, [1, 12]).build()
    evaluator = RegressionEvaluator(predictionCol="y__output", labelCol="y", metricName="rmse")
    chosen = CrossValidator(estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=3).fit(
        right
    )
    assert chosen.avgMetrics[1] < chosen.avgMetrics[0]
    best = chosen.bestModel
    best.write().overwrite().save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    assert evaluator.evaluate(loaded.transform(right)) == pytest.approx(evaluator.evaluate(best.transform(right)))
    pipeline.write().overwrite().save(str(tmp_path / "unfitted"))
    assert Pipeline.load(str(tmp_path / "unfitted")).getStages()[1].getBatchSize() == 15


def test_torch_with_two_labels_images_and_a_transformation(spark: Any, tmp_path: Path) -> None:
    from corro.spark.torch import TorchEstimator

    frame = spark.createDataFrame(
        [([float(n % 7)] * 12, float(n % 7), float(n % 7 == 3)) for n in range(140)], ["pixels", "a", "b"]
    )
    model, optimizer, losses = models.torch_two_headed()
    estimator = TorchEstimator(
        model=model, optimizer=optimizer, loss=losses, loss_weights=[0.25, 0.75], input_shapes=[[-1, 1, 3, 4]],
        feature_cols=["pixels"], label_cols=["a", "b"], transformation_fn=models.brighter,
        backend=models.Here(), epochs=2, verbose=0, store=Store.create(str(tmp_path)), validation=0.2, batch_size=20,
        inmemory_cache_all=True,
    )  # fmt: skip
    trained = estimator.fit(frame).setOutputCols(["first", "second"])
    first = trained.transform(frame).first()
    assert isinstance(first["first"], float)
    assert len(first["second"]) == 2
    assert len(trained.getHistory()["val_loss"]) == 2


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
    fails("validation is 1.5", validation=1.5)
    fails("validation names the column", validation="nothing")
    fails("backward_passes_per_step is 0", backward_passes_per_step=0)
    fails("which has its own", LightningEstimator, model=models.lightning_line(), loss=None)
    line = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    fails("needs optimizer", KerasEstimator, model=line, optimizer=None, loss="mse")
    fails("1 inputs, and there are 2 columns", KerasEstimator, model=line, feature_cols=["features", "weight"])
    with pytest.raises(TypeError, match="no parameter colour"):
        TorchEstimator(colour="red")


def test_horovods_names() -> None:
    import corro.spark.torch
    import horovod.spark.common.backend
    import horovod.spark.common.estimator
    import horovod.spark.common.params
    import horovod.spark.common.util
    import horovod.spark.keras
    import horovod.spark.lightning
    import horovod.spark.torch

    assert horovod.spark.torch.TorchEstimator is corro.spark.torch.TorchEstimator
    for kind in (horovod.spark.torch.TorchEstimator, horovod.spark.keras.KerasEstimator):
        estimator = kind()
        assert (estimator.getBatchSize(), estimator.getPartitionsPerProcess(), estimator.getEpochs()) == (32, 10, 1)
