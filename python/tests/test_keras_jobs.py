"""Runs the cases of `parallel/keras_*cases.py` on all ranks of jobs, for each backend of Keras that is installed here."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from test_elastic import Job, children
from test_jobs import run_job
from test_tensorflow_jobs import QUICK, run_examples

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BACKENDS = [name for name in ("tensorflow", "torch", "jax") if importlib.util.find_spec(name) is not None]
# Torch compiles nothing.
QUICKEST = "torch" if "torch" in BACKENDS else "tensorflow"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


def run(size: int, backend: str, *command: str, **variables: str) -> str:
    job = run_job(size, sys.executable, *command, timeout=580, KERAS_BACKEND=backend, **QUIET, **variables)
    if job.returncode:
        pytest.fail(f"{command} on {size} ranks:\n{job.stdout[-6000:]}\n{job.stderr[-6000:]}", pytrace=False)
    return job.stdout + job.stderr


def cases(size: int, backend: str, *files: str, **variables: str) -> None:
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=120"]
    paths = [str(HERE / "parallel" / file) for file in files]
    run(size, backend, "-m", "pytest", *options, *paths, **variables)


CASES = ["keras_cases.py", "keras_clipping_cases.py", "keras_saving_cases.py", "keras_watching_cases.py"]
# Clipping and what is saved is Keras' own part, the same for all backends: `make deep` tries it with each.
# Torch has its part in other tests of this file.
THOROUGH = bool(os.environ.get("CORRO_TEST_THOROUGH"))
CASES_ON = {} if THOROUGH else {"jax": [CASES[0], CASES[-1]]}
CASES_BACKENDS = [name for name in BACKENDS if THOROUGH or name != "torch"]


# All files in one job: importing Keras and its backend takes longer than most of them.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", CASES_BACKENDS)
def test_cases_on_two_ranks(backend: str) -> None:
    cases(2, backend, *CASES_ON.get(backend, CASES))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_parameter_servers(backend: str) -> None:
    cases(2, backend, "keras_ps_cases.py")


def test_cases_alone() -> None:
    cases(1, QUICKEST, *CASES)


def test_keras_2() -> None:
    if importlib.util.find_spec("tf_keras") is None:
        pytest.skip("this environment has no tf_keras")
    cases(2, "tensorflow", "keras2_cases.py", TF_USE_LEGACY_KERAS="1")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("size", "backend"), [(2, QUICKEST), *([(4, QUICKEST), (2, BACKENDS[-1])] if THOROUGH else [])]
)
def test_digits_are_learned(size: int, backend: str) -> None:
    """As well as by one rank, which reaches 97 to 98 %."""
    text = run(size, backend, str(ROOT / "examples" / "keras" / "digits.py"))
    accuracy = float(text.split("test accuracy ")[1].split("%")[0])
    assert accuracy >= 97, text
    assert "CORRO_CHECKS" not in text, text


def test_examples_that_measure(tmp_path: Path) -> None:
    examples = [f"synthetic_benchmark.py {QUICK}"]
    if THOROUGH:
        examples.append(f"alexnet.py {QUICK} --fp16")
    text = run_examples("keras", tmp_path, *examples, KERAS_BACKEND=QUICKEST, **QUIET)
    assert text.count("images/s in all") == len(examples), text
    assert "iteration   2" in text or not THOROUGH, text


@pytest.mark.timeout(400)
def test_a_training_that_loses_a_rank(tmp_path: Path) -> None:
    """The elastic example, with a rank killed in the middle."""
    example = ROOT / "examples" / "keras" / "elastic_digits.py"
    options = ["-np", "2", "--min-np", "1"]
    variables = {"KERAS_BACKEND": BACKENDS[0], **QUIET}
    job = Job(tmp_path, options, script=example, arguments=["--epochs", "6"], **variables)
    try:
        job.wait("the second epoch", lambda: "Epoch 2/6" in job.text(), 150)
        os.kill(children(job.launcher.pid)[-1], signal.SIGKILL)
        text = job.finish(200)
    finally:
        job.leave_nothing()
    assert job.launcher.returncode == 0, text
    accuracy = float(text.rsplit("test accuracy ", 1)[1].split("%")[0])
    assert accuracy > 90, text
    assert "CORRO_CHECKS" not in text, text
