"""Runs the tests of `parallel/` for TensorFlow on all ranks of jobs of 1, 2 and 4 processes, and whole programs."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_jobs import run_job

HERE = Path(__file__).parent
# The one about whole processes comes first: it counts threads, of which TensorFlow 1's sessions have their own.
FILES = [*sorted((HERE / "parallel").glob("test_tensorflow*.py"), reverse=True), HERE / "parallel" / "test_cases.py"]
# One thread each: four ranks of TensorFlow otherwise ask for several of each kind.
FEW_THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "CORRO_TEST_FRAMEWORK": "tensorflow"}
# Nothing may need a second thread that runs nodes.
ONE_FOR_NODES = {"TF_NUM_INTEROP_THREADS": "1"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_on_all_ranks(size: int) -> None:
    # All files in one job: importing TensorFlow takes longer than most of them. The shared cases need company.
    files = [str(file) for file in FILES if size > 1 or file.stem != "test_cases"]
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=120"]
    variables = {**FEW_THREADS, **(ONE_FOR_NODES if size == 2 else {})}
    job = run_job(size, sys.executable, "-m", "pytest", *options, *files, timeout=880, **variables)
    if job.returncode:
        pytest.fail(f"on {size} ranks:\n{job.stdout[-6000:]}\n{job.stderr[-6000:]}", pytrace=False)


SHARED = """
import torch, tensorflow as tf
import corro.torch as hvd_torch, corro.tensorflow as hvd
hvd.init()
assert hvd_torch.is_initialized() and hvd_torch.rank() == hvd.rank() and hvd_torch.size() == hvd.size() == 2
reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
for i in range(20):
    handle = hvd_torch.allreduce_async(torch.ones(3) * i, op=hvd_torch.Sum, name="torch")
    assert hvd.allreduce(tf.ones([2]) * i, op=hvd.Sum, name="tensorflow").numpy().tolist() == [2.0 * i] * 2
    assert reduce(tf.ones([2]) * i).numpy().tolist() == [2.0 * i] * 2
    assert hvd_torch.synchronize(handle).tolist() == [2.0 * i] * 3
hvd_torch.shutdown()
assert not hvd.is_initialized()
"""


def test_torch_and_tensorflow_share_one_engine(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("this environment has no torch")
    script = tmp_path / "job.py"
    script.write_text(SHARED)
    job = run_job(2, sys.executable, str(script), **FEW_THREADS)
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"


# Several examples in one job: for such short runs, importing TensorFlow is most of the time.
EXAMPLES = """
import runpy, sys
folder, *examples = sys.argv[1:]
sys.path.insert(0, folder)
for example in examples:
    sys.argv = example.split()
    runpy.run_path(f"{folder}/{sys.argv[0]}", run_name="__main__")
"""
QUICK = "--batch-size 2 --warmup 1 --iterations 2"


def run_examples(folder: str, tmp_path: Path, *examples: str, **variables: str) -> str:
    """What rank 0 printed."""
    script = tmp_path / "examples.py"
    script.write_text(EXAMPLES)
    where = HERE.parent.parent / "examples" / folder
    job = run_job(2, sys.executable, str(script), str(where), *examples, **variables)
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
    return job.stdout


def test_examples(tmp_path: Path) -> None:
    examples = [f"synthetic_benchmark.py {QUICK}", f"alexnet.py {QUICK} --fp16", "digits.py --epochs 2"]
    text = run_examples("tensorflow", tmp_path, *examples, **FEW_THREADS)
    assert text.count("images/s in all") == 2, text
    assert "iteration   2" in text, text
    accuracy = float(text.split("test accuracy ")[1].split("%")[0])
    assert accuracy > 50, text


TRAINING = """
import sys, tensorflow as tf, corro.tensorflow as hvd
from corro.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service
hvd.init()
config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
with tf_data_service(config, hvd.rank()) as address:
    data = tf.data.Dataset.range(20).map(lambda x: x * 2)
    data = data.send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=True)
    mine = [int(x) for x in data]
    everyone = sorted(x for part in hvd.allgather_object(mine) for x in part)
    assert everyone == [2 * i for i in range(20)], everyone
    hvd.barrier()
"""


def test_a_data_service_beside_the_training(tmp_path: Path) -> None:
    script, config = tmp_path / "training.py", tmp_path / "config.json"
    script.write_text(TRAINING)
    with ThreadPoolExecutor() as pool:
        worker = [sys.executable, "-m", "corro.tensorflow.data.compute_worker", str(config)]
        workers = pool.submit(run_job, 2, *worker, **FEW_THREADS)
        training = pool.submit(run_job, 2, sys.executable, str(script), str(config), **FEW_THREADS)
        for job in (training.result(), workers.result()):
            assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
