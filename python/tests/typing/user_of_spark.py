"""A program that uses every public name of `horovod.spark`: jobs, estimators, their stores and data. It is never run: type
checkers read it, in their strict modes. `test_typing.py` has them do so, and looks whether a name is missing here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, assert_type

import numpy as np
import torch
from pyspark.sql import DataFrame

import horovod.spark
from corro import spark
from corro.spark import jax, keras, lightning, task
from corro.spark import torch as on_torch
from corro.spark.common import backend, datamodule, store, util
from corro.spark.data_loaders import pytorch_data_loaders as loaders
from corro.spark.tensorflow import compute_worker


def trained(rate: float) -> float:
    assert_type(task.get_available_devices(), list[str])
    return rate


def jobs() -> None:
    assert_type(spark.run(trained, args=(0.1,), num_proc=2, env={"A": "b"}), list[float])
    assert_type(spark.run_elastic(trained, (0.1,), num_proc=2, max_num_proc=4), list[float])
    assert_type(horovod.spark.run(trained, args=(0.1,)), list[float])


def on_pytorch(model: torch.nn.Module, rows: DataFrame, folder: store.Store) -> None:
    estimator = on_torch.TorchEstimator(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.MSELoss(),
        store=folder,
        feature_cols=["x"],
        label_cols=["y"],
    )
    estimator.setEpochs(3).setBatchSize(16).setRunId("first").setInputShapes([[-1, 2]])
    assert_type(estimator.getBatchSize(), int)
    assert_type(estimator.getFeatureCols(), list[str])
    assert_type(estimator.fit(rows), on_torch.TorchModel)
    model_of_files = estimator.fit_on_parquet()
    assert_type(model_of_files, on_torch.TorchModel)
    assert_type(model_of_files.setOutputCols(["z"]).transform(rows), DataFrame)
    assert_type(model_of_files.getRunId(), str | None)
    assert_type(model_of_files.getHistory(), Any)
    model_of_files.save("model")


def others(rows: DataFrame) -> None:
    assert_type(keras.KerasEstimator(model=None).setCustomObjects({}).setBackendEnv({}).fit(rows), keras.KerasModel)
    assert_type(jax.JaxEstimator(model=None).setInitialParams({}).fit(rows).getTrainedParams(), Any)
    assert_type(jax.JaxModel(model=None).getBatchSize(), int)
    assert_type(lightning.TorchEstimator(model=None).setTrainerArgs({}).fit(rows), lightning.TorchModel)
    assert_type(lightning.LightningEstimator(model=None).getLogEveryNSteps(), int)
    print(lightning.LightningModel)


class Here(backend.Backend):
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        return [fn(*args)]

    def num_processes(self) -> int:
        return 1


def stores() -> None:
    assert_type(backend.SparkBackend(num_proc=2, start_timeout=60).num_processes(), int)
    assert_type(Here().run(max, (1, 2)), list[Any])
    made = store.Store.create("/tmp/store")
    assert_type(made, store.FilesystemStore)
    assert_type(made.read(made.get_run_path("first")), bytes)
    made.write_text("note", "text")
    for kind in (store.AbstractFilesystemStore, store.LocalStore, store.DBFSLocalStore):
        assert_type(kind("/dbfs/models").get_checkpoint_path("first"), str | None)
    assert_type(store.HDFSStore("hdfs://name.node:8020/models", user="me").get_checkpoints("first"), list[str])
    assert_type(util.is_databricks(), bool)
    assert_type(util.to_list("mse", 2), list[Any])
    util.check_validation(0.2)


class OneBatch(datamodule.DataModule):
    def train_data(self) -> Iterable[Any]:
        return [{"x": [1.0, 2.0]}]


def data() -> None:
    with OneBatch("train", "val") as one:
        assert_type(one, OneBatch)
    with datamodule.ParquetDataModule("train", "val", shuffle=False) as rows:
        assert_type(rows.train_data(), Iterable[dict[str, Any]])
    print(datamodule.PetastormDataModule, datamodule.NVTabularDataModule)
    reader = [{"x": np.arange(5)}]
    assert_type(len(loaders.PytorchDataLoader(reader, batch_size=2)), int)
    loaders.PytorchInfiniteDataLoader(reader, batch_size=2, limit_step_per_epoch=3)
    loaders.PytorchInmemDataLoader(reader=reader, batch_size=2)
    for kind in (
        loaders.PytorchAsyncDataLoader,
        loaders.PytorchInfiniteAsyncDataLoader,
        loaders.PytorchInmemAsyncDataLoader,
    ):
        kind(reader=reader, batch_size=2, async_loader_queue_size=1).close_async_loader()


def serving() -> None:
    compute_worker.serve(dispatchers=2, configfile="service.json")
    compute_worker.main(timeout=30)
