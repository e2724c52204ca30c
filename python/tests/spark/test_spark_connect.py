"""A client of Spark Connect: what works from there, and what it is told where something can't."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import modules, settings, wait_for_line

pytestmark = pytest.mark.timeout(600)

PROGRAM = """
import sys
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession
import corro.spark, spark_models
from corro.spark.common.store import Store
from corro.spark.torch import TorchEstimator, TorchModel

folder = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
assert "connect" in type(spark).__module__, type(spark)


def refused(call):
    try:
        call()
    except RuntimeError as error:
        assert "client of Spark Connect" in str(error), error
    else:
        raise AssertionError("nothing was said")


refused(lambda: corro.spark.run(print, num_proc=1))
refused(lambda: corro.spark.run_elastic(print, num_proc=1))

rows = [(Vectors.dense([n % 7, n % 5, n % 3]), float(n % 7 - n % 3)) for n in range(210)]
frame = spark.createDataFrame(rows, ["features", "y"])
model, optimizer = spark_models.torch_line()
optimizer.param_groups[0]["lr"] = 0.02
store = Store.create(folder + "/store")
given = dict(model=model, optimizer=optimizer, loss=spark_models.torch_loss(), store=store, feature_cols=["features"],
             label_cols=["y"], validation=0.2, epochs=40, verbose=0, random_seed=1)
for processes in (1, None):
    refused(lambda: TorchEstimator(num_proc=processes, **given).fit(frame))
assert not store.exists(store.get_train_data_path(0)), "rows were written for nothing"

trained = TorchEstimator(backend=spark_models.Here(), **given).fit(frame)
trained.save(folder + "/saved")
for predicts in (trained, TorchModel.load(folder + "/saved")):
    off = [abs(row.y - row.y__output) for row in predicts.transform(frame).collect()]
    assert len(off) == len(rows) and max(off) < 0.2, max(off)
print("all is well")
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server of Spark Connect in a process of its own."""
    log = tmp_path / "server.log"
    given = {**settings(), "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0"}
    words = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    submit = os.path.join(os.path.dirname(sys.executable), "spark-submit")
    kind = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [submit, "--master", "local[2]", *words, "--class", kind, "spark-internal"]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": modules()}
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=env, cwd=tmp_path)
    try:
        yield f"sc://127.0.0.1:{wait_for_line(log, r'server started at: .*:([0-9]+)')}"
    finally:
        process.kill()
        process.wait()


def test_a_client_of_spark_connect(server: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    env = {**os.environ, "SPARK_REMOTE": server, "PYTHONPATH": modules()}
    command = [sys.executable, str(program), str(tmp_path)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert "all is well" in ran.stdout, f"{ran.stdout[-3000:]}\n{ran.stderr[-5000:]}"
