"""Runs the cases of `parallel/keras_cases.py` on all ranks of jobs, for each backend of Keras that is installed here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from test_jobs import run_job

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BACKENDS = [name for name in ("tensorflow", "torch", "jax") if importlib.util.find_spec(name) is not None]
# Torch compiles nothing.
QUICKEST = "torch" if "torch" in BACKENDS else "tensorflow"
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


def test_cases_of_the_tensorflow_front() -> None:
    chosen = "reduced or batches_of_all or warmup or saving or local_variables or embeddings or values or resumes"
    cases(2, "tensorflow", CORRO_TEST_FRONT="tensorflow", PYTEST_ADDOPTS=f"-k '{chosen}'")


def test_cases_alone() -> None:
    cases(1, QUICKEST)


@pytest.mark.parametrize(("size", "backend"), [(2, BACKENDS[-1]), (4, QUICKEST)])
def test_digits_are_learned(size: int, backend: str) -> None:
    """As well as by one rank, which reaches 97 to 98 %."""
    text = run(size, backend, str(ROOT / "examples" / "keras" / "digits.py"))
    accuracy = float(text.split("test accuracy ")[1].split("%")[0])
    assert accuracy >= 97, text
