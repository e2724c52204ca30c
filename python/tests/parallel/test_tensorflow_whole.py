"""What concerns a whole process of TensorFlow's: the order of its nodes, its memory, its end, and Horovod's names."""

import gc
import importlib
import os
import random
import resource
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import corro
import corro.tensorflow as hvd
from corro.tensorflow.data.compute_service import TfDataServiceConfig


def inter_op_threads():
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return sum(name.startswith("tf_Compute") for name in names)


def test_every_rank_runs_its_nodes_in_an_order_of_its_own():
    """The job of two ranks has a single inter-op thread: if one node waited there, no other would ever run."""
    count = 300 if hvd.size() == 2 else 60
    order = list(range(count))
    random.Random(hvd.rank()).shuffle(order)

    @tf.function
    def many(x):
        results = {}
        for i in order:
            operation = (hvd.allreduce, hvd.allgather, hvd.broadcast)[i % 3]
            options = {"root_rank": 0} if i % 3 == 2 else {"op": hvd.Sum} if i % 3 == 0 else {}
            results[i] = operation(x + float(i), name=f"t{i}", **options)
        return [results[i] for i in range(count)]

    for _ in range(5):
        for i, result in enumerate(many(tf.ones([2]))):
            wanted = {0: [hvd.size() * (i + 1.0)] * 2, 1: [i + 1.0] * 2 * hvd.size(), 2: [i + 1.0] * 2}[i % 3]
            assert result.numpy().tolist() == wanted, i
    if os.environ.get("TF_NUM_INTEROP_THREADS") == "1":
        assert inter_op_threads() <= 1  # TensorFlow 2.18 does not name them


def test_chains_of_small_tensors_in_an_order_of_their_own():
    """Small tensors that are alone are run by TensorFlow's own thread, which must not be kept where others are needed."""
    order = [0, 1, 2] if hvd.rank() % 2 == 0 else [2, 1, 0]

    @tf.function
    def chains(x):
        results = {}
        for i in order:
            results[i] = x + float(i)
            for k in range(5):
                results[i] = hvd.allreduce(results[i], op=hvd.Average, name=f"chain{i}.{k}")
        return [results[i] for i in range(3)]

    for _ in range(60):
        assert [float(result[0]) for result in chains(tf.ones([1]))] == [1.0, 2.0, 3.0]


@pytest.mark.skipif(os.environ.get("CORRO_SIZE") != "2", reason="two ranks are enough for this")
def test_memory_does_not_grow():
    x = tf.ones([8])

    @tf.function
    def step(x):
        y = hvd.allreduce(x + 1.0, op=hvd.Max, name="max")
        return hvd.allgather(y, name="all"), hvd.grouped_allreduce([y, y * 2.0], op=hvd.Max, name="group")

    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def rounds(n):
        for _ in range(n):
            step(x)
            hvd.allreduce(x, op=hvd.Max)
            hvd.allgather(x, name="named")

    rounds(400)
    before = resident()
    rounds(1200)
    grown = resident() - before
    assert grown < 2_000_000, f"{grown} bytes more after 6000 operations"


def test_horovods_names():
    for name in (
        "",
        ".compression",
        ".data.compute_service",
        ".elastic",
        ".functions",
        ".gradient_aggregation",
        ".gradient_aggregation_eager",
        ".keras",
        ".mpi_ops",
        ".sync_batch_norm",
        ".util",
    ):
        ours = importlib.import_module(f"corro.tensorflow{name}")
        assert importlib.import_module(f"horovod.tensorflow{name}") is ours
    assert hvd._executing_eagerly() is True
    assert tf.function(lambda: tf.constant(hvd._executing_eagerly()))().numpy() is np.False_
    from horovod.tensorflow.mpi_ops import _allreduce, _normalize_name

    assert _normalize_name("a/b:0") == "a_b_0"
    some = hvd.add_process_set([0]) if hvd.size() > 1 else None
    known = {0: list(range(hvd.size()))} | ({some.process_set_id: [0]} if some else {})
    assert importlib.import_module("horovod.common.process_sets").get_process_set_ids_and_ranks() == known
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == known
    assert some is None or hvd.remove_process_set(some)
    assert _allreduce(tf.ones([2]), op=hvd.Sum).numpy().tolist() == [float(hvd.size())] * 2


@pytest.mark.parametrize(
    "addresses",
    [[("10.0.0.1", 4000), ("127.0.0.1", 4000)], {"eth0": [("10.0.0.1", 4000)], "lo": [("127.0.0.1", 4000)]}],
)
def test_the_file_of_a_data_service(addresses, tmp_path):
    config = TfDataServiceConfig(2, 3, "compute", addresses, b"key", timeout=5)
    config.write(str(tmp_path / "config.json"))
    assert TfDataServiceConfig.read(str(tmp_path / "config.json")) == config
    assert config.compute_client(verbose=2)._addresses == [("10.0.0.1", 4000), ("127.0.0.1", 4000)]


@pytest.mark.skipif(os.environ.get("CORRO_SIZE") == "1", reason="needs somebody to wait for")
def test_a_rank_that_shuts_down_ends_the_job_for_all():
    never = tf.function(lambda: hvd.allreduce(tf.ones([1]), name="never"))
    hvd.barrier()
    if hvd.rank() == 0:
        hvd.shutdown()
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"has not been initialized; use hvd.init\(\)"):
            hvd.allreduce(tf.ones([1]))
    else:
        with pytest.raises(tf.errors.UnknownError, match="Horovod has been shut down"):
            never()
        hvd.shutdown()
    # Whoever comes next finds a job again.
    corro.init(process_sets="dynamic")
    assert hvd.allreduce(tf.ones([1]), op=hvd.Sum).numpy().tolist() == [float(hvd.size())]
