"""Runs the tests of `parallel/` for TensorFlow on all ranks of jobs of 1, 2 and 4 processes, and whole programs."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_jobs import run_job

HERE = Path(__file__).parent
FILES = [HERE / "parallel" / "test_cases.py", *sorted((HERE / "parallel").glob("test_tensorflow*.py"))]
# One thread each: four ranks of TensorFlow otherwise ask for several of each kind.
FEW_THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "CORRO_TEST_FRAMEWORK": "tensorflow"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_on_all_ranks(size: int) -> None:
    # All files in one job: importing TensorFlow takes longer than most of them. The shared cases need company.
    files = [str(file) for file in FILES if size > 1 or file.stem != "test_cases"]
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=120"]
    job = run_job(size, sys.executable, "-m", "pytest", *options, *files, timeout=880, **FEW_THREADS)
    if job.returncode:
        pytest.fail(f"on {size} ranks:\n{job.stdout[-6000:]}\n{job.stderr[-6000:]}", pytrace=False)


JOBS = {
    # name: (ranks, what every rank runs)
    "one inter-op thread, and an order of its own on every rank": (
        2,
        """
import random, tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
import corro.tensorflow as hvd
hvd.init()
order = list(range(300))
random.Random(hvd.rank()).shuffle(order)
@tf.function
def many(x):
    results = {}
    for i in order:
        operation = (hvd.allreduce, hvd.allgather, hvd.broadcast)[i % 3]
        options = {"root_rank": 0} if i % 3 == 2 else {"op": hvd.Sum} if i % 3 == 0 else {}
        results[i] = operation(x + float(i), name=f"t{i}", **options)
    return [results[i] for i in range(300)]
for _ in range(5):
    for i, result in enumerate(many(tf.ones([2]))):
        wanted = {0: [2.0 * (i + 1)] * 2, 1: [i + 1.0] * 4, 2: [i + 1.0] * 2}[i % 3]
        assert result.numpy().tolist() == wanted, (i, result)
""",
    ),
    "a rank that shuts down ends the job for all": (
        2,
        """
import tensorflow as tf, corro.tensorflow as hvd
hvd.init()
hvd.barrier()
@tf.function
def never():
    return hvd.allreduce(tf.ones([1]), name="never")
if hvd.rank() == 0:
    hvd.shutdown()
    try:
        hvd.allreduce(tf.ones([1]))
    except tf.errors.FailedPreconditionError as error:
        assert "has not been initialized; use hvd.init()" in str(error), error
    else:
        raise AssertionError("there is no engine")
else:
    try:
        for i in range(1000):
            never()
    except tf.errors.UnknownError as error:
        assert "Horovod has been shut down" in str(error), error
    else:
        raise AssertionError("rank 0 is gone")
""",
    ),
    "the same script under horovod's names": (
        2,
        """
import tensorflow as tf
import horovod.tensorflow as hvd
from horovod.tensorflow.mpi_ops import _allreduce, _normalize_name
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import broadcast_object
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
import horovod.tensorflow.elastic, horovod.tensorflow.sync_batch_norm
import corro.tensorflow
assert hvd is corro.tensorflow
hvd.init()
assert hvd.allreduce(tf.ones([2]), op=hvd.Sum).numpy().tolist() == [2.0, 2.0]
assert broadcast_object({"a": hvd.rank()}, 1) == {"a": 1}
""",
    ),
    "memory does not grow": (
        2,
        """
import gc, resource, tensorflow as tf, corro.tensorflow as hvd
hvd.init()
x = tf.ones([8])
@tf.function
def step(x):
    y = hvd.allreduce(x + 1.0, op=hvd.Max, name="max")
    return hvd.allgather(y, name="all"), hvd.grouped_allreduce([y, y * 2.0], op=hvd.Max, name="group")
def resident():
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()
def rounds(n):
    for _ in range(n):
        step(x)
        hvd.allreduce(x, op=hvd.Max)
        hvd.allgather(x, name="named")
rounds(1000)
before = resident()
rounds(3000)
grown = resident() - before
assert grown < 4_000_000, f"{grown} bytes more after 15000 operations"
""",
    ),
}

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


@pytest.mark.parametrize("name", JOBS)
def test_job(name: str, tmp_path: Path) -> None:
    size, text = JOBS[name]
    script = tmp_path / "job.py"
    script.write_text(text)
    job = run_job(size, sys.executable, str(script), **FEW_THREADS)
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"


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
