"""A program that uses every public name of `horovod.torch`. It is never run: type checkers read it, in their strict modes.

`test_typing.py` has them do so, and looks whether a name is missing here.
"""

from collections.abc import Callable
from typing import Any, assert_type

import torch

import corro.torch
import horovod
import horovod.torch as hvd
from horovod.torch.elastic import ElasticSampler


def who_am_i() -> None:
    hvd.init()
    hvd.init(process_sets="dynamic")
    assert_type(hvd.is_initialized(), bool)
    assert_type(hvd.rank(), int)
    for count in (hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()):
        assert_type(count, int)
    assert_type(hvd.is_homogeneous(), bool)
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
    for enabled in (hvd.mpi_enabled(), hvd.gloo_enabled(), hvd.mpi_threads_supported()):
        assert_type(enabled, bool)
    hvd.start_timeline("timeline.json", mark_cycles=True)
    hvd.log(step=1, loss=0.25)
    hvd.stop_timeline()
    assert_type(hvd.join(), int)
    hvd.barrier()
    hvd.shutdown()
    # The same names under both packages.
    assert_type(corro.torch.rank(), int)
    assert_type(horovod.__version__, str)


def some_ranks() -> hvd.ProcessSet:
    some = hvd.add_process_set([0, 1])
    assert_type(some.included(), bool | None)
    assert_type(hvd.remove_process_set(hvd.add_process_set(hvd.ProcessSet([0]))), bool)
    assert_type(hvd.global_process_set.size(), int | None)
    return some


def operations(x: torch.Tensor, some: hvd.ProcessSet) -> None:
    assert_type(hvd.allreduce(x, op=hvd.Average, name="x", process_set=some), torch.Tensor)
    assert_type(hvd.allreduce(x, compression=hvd.Compression.fp16), torch.Tensor)
    assert_type(hvd.allreduce_(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=2), torch.Tensor)
    assert_type(hvd.grouped_allreduce([x, x], op=hvd.Min), list[torch.Tensor])
    hvd.grouped_allreduce_([x, x], op=hvd.Max)
    assert_type(hvd.allgather(x), torch.Tensor)
    hvd.grouped_allgather([x, x])
    assert_type(hvd.broadcast(x, root_rank=0), torch.Tensor)
    assert_type(hvd.broadcast_(x, 0), torch.Tensor)
    assert_type(hvd.alltoall(x), torch.Tensor)
    assert_type(hvd.alltoall(x, splits=[1, 1]), tuple[torch.Tensor, torch.Tensor])
    assert_type(hvd.reducescatter(x, op=hvd.Sum), torch.Tensor)
    hvd.grouped_reducescatter([x, x])
    assert_type(hvd.shared_empty(3, 4), torch.Tensor)


def operations_to_wait_for(x: torch.Tensor) -> None:
    handles = [
        hvd.allreduce_async(x, op=hvd.Product),
        hvd.allreduce_async_(x),
        hvd.grouped_allreduce_async([x]),
        hvd.grouped_allreduce_async_([x]),
        hvd.allgather_async(x),
        hvd.grouped_allgather_async([x]),
        hvd.broadcast_async(x, 0),
        hvd.broadcast_async_(x, 0),
        hvd.alltoall_async(x),
        hvd.reducescatter_async(x),
        hvd.grouped_reducescatter_async([x]),
    ]
    assert_type(handles, list[int])
    for handle in handles:
        assert_type(hvd.poll(handle), bool)
        hvd.synchronize(handle)
    wait = hvd.sparse_allreduce_async(x.to_sparse(), "x", hvd.Sum)
    assert_type(wait, Callable[[], torch.Tensor])
    assert_type(wait(), torch.Tensor)


def needs_sgd(optimizer: torch.optim.SGD) -> torch.optim.SGD:
    return optimizer


def training(model: torch.nn.Module) -> None:
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(plain, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        plain, named_parameters=model.named_parameters(), op=hvd.Adasum, backward_passes_per_step=2
    )
    # It is an optimizer of the class that it was made from, and has methods of its own.
    needs_sgd(optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    optimizer.zero_grad()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.set_backward_passes_per_step(4)
    assert_type(optimizer.state_dict(), dict[str, Any])
    schedule.step()
    norm = hvd.SyncBatchNorm(8, eps=1e-4)
    assert_type(norm(torch.zeros(2, 8)), Any)


def objects() -> None:
    # Others than root may give anything, and have root's.
    assert_type(hvd.broadcast_object({"a": 1} if hvd.rank() == 0 else None, root_rank=0), Any)
    assert_type(hvd.allgather_object(hvd.rank()), list[int])


@hvd.elastic.run
def elastic_training(state: hvd.elastic.TorchState, epochs: int) -> float:
    while state.epoch < epochs:
        state.batch = 0
        state.epoch += 1
        state.commit()
    return 0.5


def elastic(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: list[int]) -> None:
    sampler = hvd.elastic.ElasticSampler(data, shuffle=True)
    assert_type(ElasticSampler(data), hvd.elastic.ElasticSampler)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)
    state.register_reset_callbacks([lambda: print(state.epoch)])
    try:
        assert_type(elastic_training(state, epochs=10), float)
    except hvd.HorovodInternalError as error:
        print(error)


def as_a_function(rate: float) -> float:
    return rate * hvd.size()


def start() -> None:
    assert_type(horovod.run(as_a_function, args=(0.1,), num_proc=2), list[float])


class Halves(hvd.OwnCompressor):
    def compress(self, values: torch.Tensor, state: Any) -> torch.Tensor:
        return values.half()

    def decompress(self, code: torch.Tensor, state: Any, shape: torch.Size) -> torch.Tensor:
        return code.float()


def fewer_bytes(model: torch.nn.Module) -> None:
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = {"*.bias": hvd.Compression.none, "*": hvd.Compression.int8(block=128)}
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), compression=rules)
    assert_type(hvd.compression_report()["weight"]["ratio"], float)
    hvd.load_compression_state(hvd.compression_state())
    hvd.register_compressor("halves", Halves())

    def hook(state: None, bucket: hvd.GradBucket) -> Any:
        return hvd.allreduce_future(bucket.buffer()).then(lambda future: future.value())

    optimizer.register_comm_hook(None, hook)
    hvd.OneBitAdam(model.named_parameters(), lr=0.001, freeze=100).step()
    with hvd.LocalSGD(model, plain, every=4) as local:
        assert_type(local.steps, int)
    with hvd.DiLoCo(model, plain, every=4, outer=hvd.Nesterov(0.7, 0.9), compression="int8") as diloco:
        assert_type(diloco.state_dict(), dict[str, Any])
    with hvd.Gossip(model, plain) as gossip:
        gossip.settle()


def large_tables(ids: torch.Tensor) -> None:
    table = hvd.ShardedEmbedding(1000, 8, optimizer=hvd.sparse.Adagrad(lr=0.1, rowwise=True), name="items")
    assert_type(table(ids), Any)
    assert_type(table.full_weight(), torch.Tensor)
    table.prefetch(ids)
    hvd.ShardedEmbedding(1000, 8, shard="column", cache_rows=10, micro_batches=2)
    hvd.ShardedEmbedding(1000, 8, optimizer=hvd.sparse.SGD(lr=0.1))
    bag = hvd.ShardedEmbeddingBag({"user": (100, 8), "item": (200, 8)}, optimizer=hvd.sparse.Adam(lr=0.01))
    vectors = bag.forward({"user": ids, "item": ids})
    assert_type(vectors["user"], torch.Tensor)
    bag.save("tables")
