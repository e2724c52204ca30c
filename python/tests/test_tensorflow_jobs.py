"""Runs the tests of `parallel/` for TensorFlow on all ranks of jobs of 1, 2 and 4 processes, and whole programs."""

from __future__ import annotations

import importlib.util
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_jobs import run_job

HERE = Path(__file__).parent
# The one about whole processes comes first: it counts threads, of which TensorFlow 1's sessions have their own.
FILES = [*sorted((HERE / "parallel").glob("test_tensorflow*.py"), reverse=True), HERE / "parallel" / "test_cases.py"]
# On 1 and 4 ranks the operations are tried; training and whole programs too in `make deep`.
THOROUGH = bool(os.environ.get("CORRO_TEST_THOROUGH"))
OPERATIONS = ("test_tensorflow_ops", "test_cases")
# One thread each: four ranks of TensorFlow otherwise ask for several of each kind.
FEW_THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "CORRO_TEST_FRAMEWORK": "tensorflow"}
# Nothing may need a second thread that runs nodes.
ONE_FOR_NODES = {"TF_NUM_INTEROP_THREADS": "1"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_on_all_ranks(size: int) -> None:
    # All files in one job: importing TensorFlow takes longer than most of them. The shared cases need company.
    chosen = [file for file in FILES if size == 2 or THOROUGH or file.stem in OPERATIONS]
    files = [str(file) for file in chosen if size > 1 or file.stem != "test_cases"]
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
    """What they printed. No check may have anything to say of them."""
    script = tmp_path / "examples.py"
    script.write_text(EXAMPLES)
    where = HERE.parent.parent / "examples" / folder
    job = run_job(2, sys.executable, str(script), str(where), *examples, **variables)
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
    assert "CORRO_CHECKS" not in job.stdout + job.stderr, job.stderr[-6000:]
    return job.stdout


def test_examples(tmp_path: Path) -> None:
    examples = [f"synthetic_benchmark.py {QUICK}", f"alexnet.py {QUICK} --fp16", "digits.py --epochs 2"]
    text = run_examples("tensorflow", tmp_path, *examples, **FEW_THREADS)
    assert text.count("images/s in all") == 2, text
    assert "iteration   2" in text, text
    accuracy = float(text.split("test accuracy ")[1].split("%")[0])
    assert accuracy > 50, text


# `tf.keras` as Horovod's scripts knew it: what differs from Keras 3 is how layers compute moments and optimizers variables.
KERAS2 = """
import numpy as np, tensorflow as tf, corro.tensorflow as hvd
hvd.init()
me, size = hvd.rank(), hvd.size()
assert tf.keras.layers.Layer.__module__.startswith("tf_keras")
whole = np.random.default_rng(3).normal(2.0, 3.0, [4 * size, 2, 3]).astype("float32")
mine = slice(4 * me, 4 * me + 4)
for axis in (1, -1):
    layer, reference = hvd.SyncBatchNormalization(axis=axis), tf.keras.layers.BatchNormalization(axis=axis)
    for _ in range(2):
        got, wanted = layer(whole[mine], training=True), reference(whole, training=True)[mine]
        np.testing.assert_allclose(got, wanted, atol=1e-4)
        np.testing.assert_allclose(layer.moving_variance, reference.moving_variance, rtol=1e-4)

for optimizer in (tf.keras.optimizers.Adam(0.1), tf.keras.optimizers.legacy.Adam(0.1)):
    model = tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
    if me == 0:
        optimizer.apply_gradients([(tf.ones_like(v), v) for v in model.trainable_variables])
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=me)
    state.sync()

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    step(tf.fill([2, 3], me + 1.0))
    everything = [v.numpy().tolist() for v in [*model.variables, *optimizer.variables()]]
    assert hvd.allgather_object(everything) == [everything] * size
    assert state.batch == 0 and int(optimizer.iterations) == 2
"""


def test_with_keras_2(tmp_path: Path) -> None:
    if importlib.util.find_spec("tf_keras") is None:
        pytest.skip("this environment has no tf_keras")
    script = tmp_path / "job.py"
    script.write_text(KERAS2)
    job = run_job(2, sys.executable, str(script), **FEW_THREADS, TF_USE_LEGACY_KERAS="1")
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"


# A rank is killed in the middle of each of the trainings; those that are left go on.
ELASTIC = """
import os, signal, sys
import tensorflow as tf, corro.tensorflow as hvd
v1 = tf.compat.v1
hvd.init()

def train(name, state, step, values):
    @hvd.elastic.run
    def run(state):
        while state.batch < 20:
            if state.batch == 7 and hvd.rank() == hvd.size() - 1 and hvd.size() == sizes[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            step()
            state.batch += 1
            state.commit()
    run(state)
    assert values() == [20.0, 20.0], values()
    assert hvd.size() == sizes.pop(0) - 1
    print(name, "survived", flush=True)

sizes = [4, 3, 2]
x = tf.Variable([0.0, 0.0])
# The name of the node says nothing of what it is.
graph = tf.function(lambda: x.assign_add(hvd.allreduce(tf.ones([2]), name="mine")))
train("graph", hvd.elastic.TensorFlowState([x], batch=0), graph, lambda: x.numpy().tolist())

y = tf.Variable([0.0, 0.0])
reduce = tf.function(lambda: hvd.allreduce(tf.ones([2]), name="compiled"), jit_compile=True)
train("compiled", hvd.elastic.TensorFlowState([y], batch=0), lambda: y.assign_add(reduce()), lambda: y.numpy().tolist())

with tf.Graph().as_default(), v1.Session() as session:
    z = v1.get_variable("z", initializer=[0.0, 0.0])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    minimize = optimizer.minimize(-tf.reduce_sum(z))
    session.run(v1.global_variables_initializer())
    state = hvd.elastic.TensorFlowState(session=session, batch=0)
    train("session", state, lambda: session.run(minimize), lambda: session.run(z).tolist())
"""


def test_training_survives_lost_ranks(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(ELASTIC)
    options = ["--min-np", "1", "--max-np", "4"]
    job = run_job(4, *options, sys.executable, str(script), **FEW_THREADS)
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
    # Each line is written by all who are left: 3, 2 and 1 of them.
    assert [job.stdout.count(f"{name} survived") for name in ("graph", "compiled", "session")] == [3, 2, 1], job.stdout


# At first nothing is wrong: a rank that comes late sleeps. Then each waits in a graph for what the other does not run.
# Graphs run on TensorFlow's threads, which the engine does not know. (No `tf.data`: it has a thread that sleeps, and who
# sleeps may yet do something.)
WRONG = """
import time, tensorflow as tf, corro.tensorflow as hvd
hvd.init()
me = hvd.rank()
reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="both"))
for _ in range(60):
    assert reduce(tf.ones([2])).numpy().tolist() == [2.0] * 2
if me == 0:
    time.sleep(1.5)
reduce(tf.ones([2]))

mine = "ab"[me]
wrong = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name=mine))
began = time.monotonic()
try:
    wrong(tf.ones([2]))
except Exception as error:
    text = str(error)
    assert "deadlock" in text, text
    assert "a', which rank 1 has not submitted" in text, text
    assert "b', which rank 0 has not submitted" in text, text
else:
    raise AssertionError("it never ends")
print("told after", time.monotonic() - began, flush=True)
"""


def test_ranks_that_run_different_graphs_are_told_which(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(WRONG)
    # Long before CORRO_TIMEOUT.
    job = run_job(2, sys.executable, str(script), **FEW_THREADS)
    assert job.stdout.count("told after") == 2, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"


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
        worker = [sys.executable, "-m", "horovod.tensorflow.data.compute_worker", str(config)]
        workers = pool.submit(run_job, 2, *worker, **FEW_THREADS)
        training = pool.submit(run_job, 2, sys.executable, str(script), str(config), **FEW_THREADS)
        for job in (training.result(), workers.result()):
            assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
