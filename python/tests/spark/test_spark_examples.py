"""The examples, each a driver program of its own with executors of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import settings

pytestmark = pytest.mark.timeout(900)

EXAMPLES = Path(__file__).parents[3] / "examples" / "spark"


def run(name: str, tmp_path: Path) -> str:
    words = [word for key, value in settings().items() for word in ("--conf", f"{key}={value}")]
    submit = os.path.join(os.path.dirname(sys.executable), "spark-submit")
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    program = [str(EXAMPLES / name), "--num-proc", "2", "--store", str(tmp_path)]
    command = [submit, "--master", "local-cluster[2,1,1024]", *words, *program]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=800, check=False)
    assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-5000:]}"
    return ran.stdout


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text[-3000:]
    return float(found.group(1))


def test_sales_with_keras(tmp_path: Path) -> None:
    # Noise of 3 % is in the data.
    assert number(r"test rows: (\S+) % \(RMSPE\)", run("sales_keras.py", tmp_path)) < 15


def test_digits_with_torch(tmp_path: Path) -> None:
    assert number(r"accuracy on test rows: (\S+) %", run("digits_torch.py", tmp_path)) > 90
