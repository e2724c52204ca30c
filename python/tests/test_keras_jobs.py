"""Runs the cases of `parallel/keras_cases.py` on all ranks of jobs, for each backend of Keras that is installed here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from test_jobs import run_job

if importlib.util.find_spec("keras") is None:
    pytest.skip("no Keras in this environment; `scripts/python_test tf` runs these", allow_module_level=True)

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BACKENDS = [name for name in ("tensorflow", "torch", "jax") if importlib.util.find_spec(name) is not None]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


def run(size: int, backend: str, *command: str, **variables: str) -> str:
    job = run_job(size, sys.executable, *command, KERAS_BACKEND=backend, **QUIET, **variables)
    if job.returncode:
        pytest.fail(f"{command} on {size} ranks:\n{job.stdout[-6000:]}\n{job.stderr[-6000:]}", pytrace=False)
    return job.stdout


def cases(size: int, backend: str, **variables: str) -> None:
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=120"]
    run(size, backend, "-m", "pytest", *options, str(HERE / "parallel" / "keras_cases.py"), **variables)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cases_on_two_ranks(backend: str) -> None:
    cases(2, backend)


def test_cases_on_two_ranks_of_the_tensorflow_front() -> None:
    cases(2, "tensorflow", CORRO_TEST_FRONT="tensorflow")


def test_cases_alone() -> None:
    cases(1, BACKENDS[-1])
