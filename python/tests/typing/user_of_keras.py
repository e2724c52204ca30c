"""A program that uses every public name of `horovod.keras` and `horovod.tensorflow.keras`. It is never run: type checkers
read it, in their strict modes. `test_typing.py` has them do so, and looks whether a name is missing here.
"""

from typing import assert_type

import keras

import horovod.keras as hvd
import horovod.tensorflow.keras as tf_hvd


def who_am_i() -> None:
    tf_hvd.init()
    assert_type(tf_hvd.rank(), int)
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
    tf_hvd.log(step=1, loss=0.25)
    hvd.stop_timeline()
    hvd.shutdown()


def some_ranks() -> None:
    some = tf_hvd.add_process_set(tf_hvd.ProcessSet([0]))
    assert_type(tf_hvd.remove_process_set(some), bool)
    assert_type(hvd.global_process_set.size(), int | None)
    assert_type(tf_hvd.global_process_set.size(), int | None)


def operations() -> None:
    hvd.allreduce(1.0, average=None, op=hvd.Sum, compression=hvd.Compression.none)
    hvd.allgather([1.0])
    hvd.broadcast(1.0, root_rank=0)
    hvd.reducescatter([1.0, 2.0], op=hvd.Average)
    tf_hvd.allreduce(1.0, op=tf_hvd.Sum, compression=tf_hvd.Compression.fp16)
    tf_hvd.allgather([1.0])
    tf_hvd.broadcast(1.0, root_rank=0)
    tf_hvd.reducescatter([1.0, 2.0], op=tf_hvd.Average)
    hvd.broadcast_object({"a": 1})
    tf_hvd.broadcast_object({"a": 1})
    assert_type(hvd.allgather_object(hvd.rank()), list[int])
    assert_type(tf_hvd.allgather_object("text"), list[str])


def training() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()), backward_passes_per_step=2), "mse")
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=1e-3, warmup_epochs=3, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(initial_lr=1e-3, multiplier=lambda epoch: 0.1**epoch, start_epoch=3),
        hvd.callbacks.BestModelCheckpoint(monitor="val_loss"),
        hvd.callbacks.LogValuesCallback(),
        hvd.callbacks.LocalSGDCallback(every=4),
        hvd.callbacks.DiLoCoCallback(hvd.callbacks.Nesterov(0.7, 0.9), every=4),
        hvd.callbacks.GossipCallback(graph="ring"),
    ]
    model.fit([0.0], [0.0], callbacks=callbacks)
    hvd.broadcast_variables(model.weights, root_rank=0)
    hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=model.layers[:1], op=hvd.Average)
    hvd.load_model("model.keras", compression=hvd.Compression.none)
    print(hvd.Adasum)
    hvd.broadcast_global_variables(0)


def training_by_tensorflow() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(tf_hvd.DistributedOptimizer(keras.optimizers.Adam(), groups=2), "mse")
    callbacks = [
        tf_hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),
        tf_hvd.callbacks.MetricAverageCallback(),
        tf_hvd.callbacks.LearningRateWarmupCallback(initial_lr=1e-3),
        tf_hvd.callbacks.LearningRateScheduleCallback(initial_lr=1e-3, multiplier=0.1),
        tf_hvd.callbacks.BestModelCheckpoint(monitor="val_loss"),
        tf_hvd.callbacks.LogValuesCallback(),
    ]
    model.fit([0.0], [0.0], callbacks=callbacks)
    tf_hvd.broadcast_variables(model.weights, root_rank=0)
    tf_hvd.load_model("model.keras")
    tf_hvd.broadcast_global_variables(0)


@hvd.elastic.run
def elastic_training(state: hvd.elastic.KerasState, epochs: int) -> float:
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=10),
    ]
    state.model.fit([0.0], [0.0], epochs=epochs - state.epoch, callbacks=callbacks)
    return 0.5


@tf_hvd.elastic.run
def tf_elastic_training(state: tf_hvd.elastic.KerasState) -> int:
    state.commit()
    return 1


def elastic(model: keras.Model) -> None:
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    state.epoch = 3
    assert_type(elastic_training(state, epochs=10), float)
    tf_state = tf_hvd.elastic.KerasState(model, epoch=0)
    tf_hvd.elastic.UpdateEpochStateCallback(tf_state)
    tf_hvd.elastic.UpdateBatchStateCallback(tf_state)
    tf_hvd.elastic.CommitStateCallback(tf_state)
    assert_type(tf_elastic_training(tf_state), int)


def fewer_bytes() -> None:
    assert_type(hvd.compression_report()["weight"]["ratio"], float)
    hvd.load_compression_state(hvd.compression_state())
    assert_type(tf_hvd.compression_report()["weight"]["ratio"], float)
    tf_hvd.load_compression_state(tf_hvd.compression_state())


def parameter_servers() -> None:
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), mode="ps", staleness=3)
    tf_hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), mode="ps", compression="int8")
    hvd.layers.ShardedEmbedding(1000, 8, pooling="sum", table="items")
    tf_hvd.layers.ShardedEmbedding(1000, 8, pooling="sum", table="items")
