"""A program that uses every public name of `horovod.tensorflow`. It is never run: type checkers read it, in their strict
modes. `test_typing.py` has them do so, and looks whether a name is missing here.
"""

from typing import Any, assert_type

import tensorflow as tf

import corro.tensorflow
import horovod.tensorflow as hvd


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
    assert_type(hvd.elastic_enabled(), bool)
    assert_type(hvd.gpu_available("tensorflow"), bool)
    assert_type(hvd.check_num_rank_power_of_2(hvd.size()), bool)
    assert_type(hvd.handle_average_backwards_compatibility(hvd.Sum, None), int)
    hvd.start_timeline("timeline.json", mark_cycles=True)
    hvd.log(step=1, loss=0.25)
    hvd.stop_timeline()
    hvd.barrier()
    hvd.shutdown()
    assert_type(corro.tensorflow.rank(), int)


def some_ranks() -> hvd.ProcessSet:
    assert_type(hvd.remove_process_set(hvd.add_process_set(hvd.ProcessSet([0]))), bool)
    assert_type(hvd.global_process_set.size(), int | None)
    return hvd.add_process_set([0, 1])


def operations(x: tf.Tensor, some: hvd.ProcessSet) -> None:
    hvd.allreduce(x, op=hvd.Average, name="x", process_set=some, compression=hvd.Compression.fp16)
    hvd.allreduce(x, op=hvd.Min, prescale_factor=0.5, postscale_factor=2.0)
    assert_type(hvd.grouped_allreduce([x, x], op=hvd.Max), list[Any])
    hvd.allgather(x, ignore_name_scope=True)
    assert_type(hvd.grouped_allgather([x, x]), list[Any])
    hvd.broadcast(x, root_rank=0)
    hvd.broadcast_([tf.Variable(0.0)], 0)
    received, splits = hvd.alltoall(x, splits=[1, 1])
    print(received, splits, hvd.alltoall(x))
    hvd.reducescatter(x, op=hvd.Product)
    hvd.grouped_reducescatter([x, x], op=hvd.Adasum)
    print(hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op())
    print(hvd.join())


def needs_a_tape(tape: tf.GradientTape) -> None:
    print(tape)


def reduced(gradients: list[Any], variables: list[Any]) -> list[Any]:
    print(variables)
    return gradients


def training(weights: list[tf.Variable]) -> None:
    hvd.broadcast_variables(weights, root_rank=0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights[0])
    distributed = hvd.DistributedGradientTape(tape, op=hvd.Average)
    needs_a_tape(distributed)
    distributed.register_local_source(weights[0])
    assert_type(distributed.gradient(loss, weights), list[Any])
    hvd.PartialDistributedGradientTape(tape, local_layers=[]).get_local_and_global_gradients(loss, weights)
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    optimizer.apply_gradients([])
    hvd.SyncBatchNormalization()
    helper = hvd.LocalGradientAggregationHelper(2, reduced)
    assert_type(helper.compute_gradients([loss], weights), list[Any])
    hvd.LocalGradientAggregationHelperEager(2, reduced)
    hvd.refs_to_vars(hvd.vars_to_refs(weights))


def as_in_tensorflow_1() -> None:
    hvd.broadcast_global_variables(0)
    hook = hvd.BroadcastGlobalVariablesHook(0)
    assert_type(hook.root_rank, int)


def objects() -> None:
    hvd.broadcast_object({"a": 1}, root_rank=0)
    hvd.broadcast_object_fn(root_rank=0)({"a": 1})
    assert_type(hvd.allgather_object(hvd.rank()), list[int])


@hvd.elastic.run
def elastic_training(state: hvd.elastic.TensorFlowKerasState, epochs: int) -> float:
    while state.epoch < epochs:
        state.batch = 0
        state.epoch += 1
        state.commit()
    return 0.5


def elastic(model: tf.keras.Model, weights: list[tf.Variable]) -> None:
    state = hvd.elastic.TensorFlowKerasState(model, epoch=0, batch=0)
    assert_type(elastic_training(state, epochs=10), float)
    hvd.elastic.TensorFlowState(weights, epoch=0).commit()
    try:
        state.check_host_updates()
    except hvd.HorovodInternalError as error:
        print(error)


def fewer_bytes() -> None:
    assert_type(hvd.compression_report()["weight"]["ratio"], float)
    hvd.load_compression_state(hvd.compression_state())
