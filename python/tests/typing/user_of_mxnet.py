"""A program that uses every public name of `horovod.mxnet`. It is never run: type checkers read it, in their strict modes.

`test_typing.py` has them do so, and looks whether a name is missing here. MXNet has no types; an array is any object.
"""

from collections.abc import Sequence
from typing import Any, assert_type

import mxnet as mx

import corro.mxnet
import horovod.mxnet as hvd


class Array:
    """In place of MXNet's, which checkers do not know."""


def who_am_i() -> None:
    hvd.init()
    assert_type(hvd.is_initialized(), bool)
    for count in (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()):
        assert_type(count, int)
    assert_type(hvd.nccl_built(), int)
    for built in (
        hvd.mpi_built(),
        hvd.gloo_built(),
        hvd.ddl_built(),
        hvd.ccl_built(),
        hvd.cuda_built(),
        hvd.rocm_built(),
    ):
        assert_type(built, bool)
    for enabled in (hvd.mpi_enabled(), hvd.gloo_enabled(), hvd.mpi_threads_supported(), hvd.is_homogeneous()):
        assert_type(enabled, bool)
    hvd.start_timeline("timeline.json")
    hvd.log(step=1, loss=0.25)
    hvd.stop_timeline()
    hvd.shutdown()
    assert_type(corro.mxnet.rank(), int)


def some_ranks() -> hvd.ProcessSet:
    assert_type(hvd.remove_process_set(hvd.add_process_set(hvd.ProcessSet([0]))), bool)
    assert_type(hvd.global_process_set.size(), int | None)
    return hvd.add_process_set([0, 1])


def operations(x: Array, some: hvd.ProcessSet) -> None:
    assert_type(hvd.allreduce(x, op=hvd.Average, name="x", process_set=some), Array)
    for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        assert_type(hvd.allreduce_(x, op=op, prescale_factor=0.5), Array)
    assert_type(hvd.grouped_allreduce([x, x]), Sequence[Array])
    assert_type(hvd.grouped_allreduce_([x, x]), Sequence[Array])
    assert_type(hvd.allgather(x), Array)
    assert_type(hvd.grouped_allgather([x, x]), Sequence[Array])
    assert_type(hvd.broadcast(x, root_rank=0), Array)
    assert_type(hvd.broadcast_(x, 0), Array)
    assert_type(hvd.alltoall(x), Array)
    assert_type(hvd.alltoall(x, splits=[1, 1]), tuple[Array, Array])
    assert_type(hvd.reducescatter(x, op=hvd.Sum), Array)
    assert_type(hvd.grouped_reducescatter([x, x]), Sequence[Array])


def training(net: Any) -> None:
    params = net.collect_params()
    hvd.broadcast_parameters(params, root_rank=0, prefix="net")
    hvd.DistributedOptimizer(mx.optimizer.SGD(), num_groups=2).set_learning_rate(0.1)
    trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 0.1}, compression=hvd.Compression.fp16)
    trainer.step(1)


def objects() -> None:
    assert_type(hvd.broadcast_object({"epoch": 1}, root_rank=0), Any)
    try:
        assert_type(hvd.allgather_object(hvd.rank()), list[int])
    except hvd.HorovodInternalError as error:
        assert_type(error.blamed_rank, int | None)
