"""The workers of TensorFlow's data service in the tasks of a Spark application, and a training that uses them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import submit_arguments

# Most of it is the import of TensorFlow, by every process anew.
pytestmark = pytest.mark.timeout(600)


def _workers(config: Path, master: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "horovod.spark.tensorflow.compute_worker", str(config), *words]
    env = {**os.environ, **submit_arguments(master)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _wait_for(config: Path, job: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 300
    while not config.exists():
        assert job.poll() is None, job.communicate()[0][-5000:]
        assert time.monotonic() < until, "the workers have not begun"
        time.sleep(0.1)


def test_a_training_reads_what_workers_on_spark_have_computed(tmp_path: Path) -> None:
    import tensorflow as tf

    from corro.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

    config = tmp_path / "service.json"
    job = _workers(config, "local-cluster[2,1,1024]", "--timeout", "300")
    try:
        _wait_for(config, job)
        found = TfDataServiceConfig.read(str(config))
        assert (found.dispatchers, found.workers_per_dispatcher) == (1, 2)
        with tf_data_service(found, 0):
            data = tf.data.Dataset.range(20).map(lambda x: x * 2)
            data = data.send_to_data_service(found, 0, 1, reuse_dataset=True)
            assert sorted(int(x) for x in data) == [2 * i for i in range(20)]
        # The training is over, and so is the application.
        said = job.communicate(timeout=120)[0]
        assert job.returncode == 0, said[-5000:]
    finally:
        job.kill()
        job.wait()


def test_a_signal_ends_workers_and_application(tmp_path: Path) -> None:
    config = tmp_path / "service.json"
    job = _workers(config, "local[2]", "--dispatcher-side", "training", "--timeout", "300", "--dispatchers", "2")
    try:
        _wait_for(config, job)
        job.send_signal(signal.SIGTERM)
        said = job.communicate(timeout=120)[0]
        assert job.returncode == 128 + signal.SIGTERM, said[-5000:]
    finally:
        job.kill()
        job.wait()


def test_dispatchers_with_unequally_many_workers_are_refused(application: object) -> None:
    from corro.spark.tensorflow.compute_worker import serve

    with pytest.raises(
        ValueError, match=r"number of processes \(3\) must be a multiple of number of dispatchers \(2\)"
    ):
        serve(dispatchers=2)
