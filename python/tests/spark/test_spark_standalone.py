"""A master and workers of Spark's own, from what the pip package has, and a driver program that is not this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import modules, settings, wait_for_line

# Most of it is the start of an executor, which takes minutes on a machine that is busy.
pytestmark = pytest.mark.timeout(900)

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import corro.spark, spark_functions
from corro.spark.task import get_available_devices

spark = SparkSession.builder.getOrCreate()
given = corro.spark.run(spark_functions.add_up, num_proc=2, start_timeout=200)
assert [one["sum"] for one in given] == [1.0, 1.0], given
assert len({one["executor"] for one in given}) == 2, given
devices = corro.spark.run(get_available_devices, num_proc=2)
assert sorted(devices) == [["4"], ["5"]], devices
spark.stop()
print("all is well")
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Two workers with a core and a GPU each, as far as Spark is told."""
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    gpu = tmp_path / "gpu"
    processes = []
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable}

    def start(name: str, *words: str, **more: str) -> Path:
        log = tmp_path / f"{name}.log"
        command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name.split('-', maxsplit=1)[0]}", *words]
        with log.open("w") as file:
            processes.append(subprocess.Popen(command, stdout=file, stderr=file, env={**env, **more}, cwd=tmp_path))
        return log

    try:
        log = start("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = wait_for_line(log, r"(spark://127\.0\.0\.1:\d+)")
        for number in (4, 5):
            find = gpu.with_name(f"gpu{number}")
            find.write_text(f'#!/bin/sh\necho \'{{"name": "gpu", "addresses": ["{number}"]}}\'\n', encoding="utf-8")
            find.chmod(0o755)
            options = f"-Dspark.worker.resource.gpu.amount=1 -Dspark.worker.resource.gpu.discoveryScript={find}"
            words = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g", url)
            log = start(f"worker.Worker-{number}", *words, SPARK_WORKER_OPTS=options, SPARK_WORKER_DIR=str(tmp_path))
            wait_for_line(log, r"Successfully registered with master")
        yield url
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_program_on_a_standing_cluster(master: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    gpus = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1"}
    words = [word for name, value in {**settings(), **gpus}.items() for word in ("--conf", f"{name}={value}")]
    submit = os.path.join(os.path.dirname(sys.executable), "spark-submit")
    env = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": modules(),
    }
    command = [submit, "--master", master, *words, str(program)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert "all is well" in ran.stdout, f"{ran.stdout[-3000:]}\n{ran.stderr[-5000:]}"
