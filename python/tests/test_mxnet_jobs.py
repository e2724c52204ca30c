"""Runs the tests of `parallel/` for MXNet on all ranks of jobs of 1, 2 and 4 processes, and the example."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_jobs import run_job

HERE = Path(__file__).parent
FILES = [HERE / "parallel" / f"test_{name}.py" for name in ("mxnet_ops", "mxnet_checks", "cases")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_on_all_ranks(size: int) -> None:
    # The shared cases need company.
    files = [str(file) for file in FILES if size > 1 or file.stem != "test_cases"]
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=120"]
    job = run_job(size, sys.executable, "-m", "pytest", *options, *files, timeout=580, CORRO_TEST_FRAMEWORK="mxnet")
    if job.returncode:
        pytest.fail(f"on {size} ranks:\n{job.stdout[-6000:]}\n{job.stderr[-6000:]}", pytrace=False)


def test_example() -> None:
    example = HERE.parent.parent / "examples" / "mxnet" / "regression.py"
    job = run_job(2, sys.executable, str(example), "--epochs", "3")
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
    assert "ranks 2   error" in job.stdout
    assert "CORRO_CHECKS" not in job.stdout + job.stderr, job.stderr[-6000:]
