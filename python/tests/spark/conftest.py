"""Real Spark for the tests: one application with executors of its own, and functions that ranks run."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Executors import the functions of the tests by their modules' names.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


def modules() -> str:
    """Where other processes look for modules: those of the tests among them."""
    return os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])


def settings() -> dict[str, str]:
    """What a small machine wants, and one without a name in DNS."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": modules(),
        "spark.sql.shuffle.partitions": "3",
        "spark.default.parallelism": "3",
    }


def submit_arguments(master: str) -> dict[str, str]:
    """The environment of a driver program that is not this one, for a Spark of its own."""
    given = {**settings(), "spark.default.parallelism": "2"}
    words = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join(["--master", master, *words, "pyspark-shell"]),
    }


def wait_for_line(log: Path, pattern: str) -> str:
    """What a server says of itself in its log: the pattern's last group, or all of it."""
    until = time.monotonic() + 150
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < until, log.read_text()[-5000:]
        time.sleep(0.2)
    return found.group(found.lastindex or 0)


def session(master: str, **more: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("corro tests")
    for name, value in {**settings(), **more}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


@pytest.fixture(scope="session")
def application() -> Iterator[Any]:
    """Three executors with a slot each, as processes of their own."""
    made = session("local-cluster[3,1,1024]")
    yield made
    made.stop()


@pytest.fixture
def spark(application: Any) -> Any:
    """The same, with all executors: Spark may still be replacing one that a test has killed."""
    scala = application.sparkContext._jsc.sc()
    until = time.monotonic() + 200
    while scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()) < 3:
        assert time.monotonic() < until, "Spark has not started three executors"
        time.sleep(0.1)
    return application


@pytest.fixture(scope="session")
def rows(application: Any) -> Any:
    """The DataFrame of the estimators' tests."""
    import estimator_checks

    return estimator_checks.line(application)
