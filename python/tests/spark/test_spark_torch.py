"""`TorchEstimator` on a real Spark: from DataFrames to trained models and predictions, in pipelines too."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import spark_models as models
from estimator_checks import check_history, check_predictions, common

from corro.spark.common._prepare import prepare
from corro.spark.common.backend import SparkBackend
from corro.spark.common.store import Store

# Most of it is the import of frameworks, by every process anew.
pytestmark = pytest.mark.timeout(900)


def test_torch_with_weights_validation_metrics_and_resume(spark: Any, rows: Any, tmp_path: Path) -> None:
    from corro.spark.torch import TorchEstimator, TorchModel

    model, optimizer = models.torch_line()
    given = common(tmp_path, metrics=[models.largest_output], run_id="first", callbacks=[models.Noting(str(tmp_path))])
    said = io.StringIO()
    given |= {"num_proc": None, "backend": SparkBackend(2, page=True, stdout=said, stderr=said)}
    estimator = TorchEstimator(model=model, optimizer=optimizer, loss=models.torch_loss(), **given)
    trained = estimator.fit(rows)
    assert "watch this job at http://127.0.0.1:" in said.getvalue()
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
    # For TensorBoard: the files of both trainings.
    assert len(list((tmp_path / "runs" / "first" / "logs").glob("events.out.tfevents.*"))) == 2
    lines = (tmp_path / "runs" / "first" / "logs" / "values.jsonl").read_text().splitlines()
    assert [one["step"] for one in map(json.loads, lines) if one["name"] == "val_loss"] == [13, 14]
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


def test_rows_are_written_again_when_what_is_behind_them_has_changed(spark: Any, tmp_path: Path) -> None:
    store, table = Store.create(str(tmp_path)), str(tmp_path / "table")

    def rows(count: int) -> Any:
        spark.range(count).write.mode("overwrite").parquet(table)
        return spark.read.parquet(table)

    def prepared(frame: Any) -> tuple[int, int]:
        made = prepare(frame, store, ["id"], None, 2, seed=1)
        return made.idx, made.train_rows

    before = rows(30)
    assert [prepared(before), prepared(before)] == [(0, 30), (0, 30)]
    assert prepared(rows(20)) == (1, 20)
