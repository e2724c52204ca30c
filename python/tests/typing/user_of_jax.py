"""A program that uses every public name of `horovod.jax`. It is never run: type checkers read it, in their strict modes.
`test_typing.py` has them do so, and looks whether a name is missing here.
"""

from collections.abc import Iterator, Sequence
from typing import Any, assert_type

import jax
import optax  # pyright: ignore[reportMissingTypeStubs]

import corro.jax
import horovod.jax as hvd
from corro import ps


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
    assert_type(hvd.mpi_enabled() or hvd.gloo_enabled() or hvd.is_homogeneous(), bool)
    hvd.mpi_threads_supported()
    hvd.start_timeline("timeline.json", mark_cycles=True)
    hvd.log(step=1, loss=0.25)
    hvd.stop_timeline()
    hvd.shutdown()
    assert_type(corro.jax.rank(), int)


def some_ranks() -> hvd.ProcessSet:
    assert_type(hvd.remove_process_set(hvd.add_process_set(hvd.ProcessSet([0]))), bool)
    assert_type(hvd.global_process_set.size(), int | None)
    return hvd.add_process_set([0, 1])


def operations(x: jax.Array, some: hvd.ProcessSet) -> None:
    assert_type(hvd.allreduce(x, op=hvd.Average, name="x", process_set=some), jax.Array)
    tree = {"a": x, "b": x}
    assert_type(hvd.allreduce(tree, op=hvd.Sum, compression=hvd.Compression.bf16), dict[str, jax.Array])
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        hvd.allreduce(x, op=op, prescale_factor=0.5, postscale_factor=2.0)
    assert_type(hvd.grouped_allreduce([x, x]), list[Any])
    assert_type(hvd.allgather(x, rows=[1, 2]), jax.Array)
    assert_type(hvd.grouped_allgather([x]), list[Any])
    assert_type(hvd.broadcast(tree, root_rank=0), dict[str, jax.Array])
    hvd.alltoall(x, splits=[1, 1], received_splits=[1, 1])
    assert_type(hvd.reducescatter(x, op=hvd.Sum), jax.Array)
    assert_type(hvd.grouped_reducescatter([x]), list[Any])
    assert_type(hvd.barrier(x), jax.Array)
    hvd.barrier()
    assert_type(hvd.join(), int)


def objects(x: jax.Array) -> None:
    hvd.broadcast_object({"epoch": 1}, root_rank=0)
    assert_type(hvd.allgather_object("a"), list[str])
    assert_type(hvd.average_metrics({"loss": x}), dict[str, jax.Array])


def loss(params: dict[str, jax.Array]) -> jax.Array:
    return params["w"]


def training(params: dict[str, jax.Array]) -> None:
    params = hvd.broadcast_parameters(params, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.1), backward_passes_per_step=2)
    state: Any = hvd.broadcast_optimizer_state(optimizer.init(params))
    value, gradients = hvd.value_and_grad(loss, average_value=True)(params)
    gradients = hvd.grad(loss)(params)
    updates, state = optimizer.update(gradients, state, params)
    optax.apply_updates(params, updates)
    print(value)


def data() -> None:
    assert_type(hvd.data.shard([1, 2, 3]), Iterator[int])
    assert_type(hvd.data.indices(10, epoch=1), Sequence[int])
    hvd.data.shard_options()


@hvd.elastic.run
def elastic(state: hvd.elastic.JaxState, epochs: int) -> int:
    try:
        while state.epoch < epochs:
            state.epoch += 1
            state.commit()
    except hvd.HorovodInternalError as error:
        assert_type(error.blamed_rank, int | None)
        raise
    return epochs


def goes_on(x: jax.Array) -> None:
    assert_type(elastic(hvd.elastic.JaxState(params={"w": x}, epoch=0), 3), int)


def fewer_bytes(params: dict[str, jax.Array]) -> None:
    hvd.DistributedOptimizer(optax.sgd(0.1), compression={"*": hvd.Compression.int8(block=128)})
    assert_type(hvd.compression_report()["weight"]["ratio"], float)
    hvd.load_compression_state(hvd.compression_state())
    hvd.LocalSGD(params, every=4).step(params)
    hvd.DiLoCo(params, hvd.Nesterov(0.7, 0.9), every=4).step(params)
    hvd.Gossip(params).settle(params)


def parameter_servers(params: dict[str, jax.Array], ids: jax.Array) -> None:
    hvd.DistributedOptimizer(optax.sgd(0.1), mode="ps", compression="int8")
    hvd.DistributedOptimizer(ps.Adam(lr=0.001), mode="ps", staleness=3).init(params)
    table = hvd.ShardedEmbedding(1000, 8, optimizer=ps.Adagrad(lr=0.1), name="items")
    assert_type(table.init_anchor(), jax.Array)
    table(table.init_anchor(), ids)
    table.save("tables")
    table.load("tables")
