"""A program that uses every public name of `corro` itself, `corro.numpy`, `corro.ps`, `corro.data` and `corro.runner`.

It is never run: type checkers read it, in their strict modes. `test_typing.py` has them do so, and looks whether a name is
missing here.
"""

import threading
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import corro
import corro.numpy as hvd
import corro.spark
from corro import data, ps, runner
from horovod.common.util import split_list
from horovod.runner.common.util import codec, host_hash, safe_shell_exec, secret
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.common.util.settings import Settings
from horovod.runner.common.util.timeout import Timeout, TimeoutException
from horovod.runner.elastic.discovery import FixedHosts
from horovod.runner.gloo_run import gloo_run
from horovod.runner.util import network, streams, threads


def who_am_i() -> None:
    hvd.init(process_sets="dynamic")
    assert_type(hvd.is_initialized(), bool)
    assert_type(hvd.rank(), int)
    hvd.shutdown()
    corro.init()
    assert_type(corro.is_initialized(), bool)
    places = (
        corro.size(),
        corro.local_rank(),
        corro.local_size(),
        corro.cross_rank(),
        corro.cross_size(),
        corro.rank(),
    )
    assert_type(places, tuple[int, int, int, int, int, int])
    assert_type(corro.is_homogeneous(), bool)
    corro.start_timeline("timeline.json")
    corro.log(step=1, loss=0.25)
    corro.stop_timeline()
    corro.shutdown()
    some = corro.add_process_set(corro.ProcessSet([0]))
    assert_type(corro.remove_process_set(some), bool)
    assert_type(corro.global_process_set.size(), int | None)
    print(corro.Average, corro.Sum, corro.Adasum, corro.Min, corro.Max, corro.Product)
    try:
        assert_type(corro.run(divided, args=(3, 2), num_proc=2), list[float])
    except (corro.HorovodInternalError, corro.HostsUpdatedInterrupt) as error:
        print(error)


def divided(x: int, y: int) -> float:
    return x / y


def arrays(x: NDArray[np.float32], some: hvd.ProcessSet) -> None:
    assert_type(hvd.size(), int)
    assert_type(hvd.local_rank() + hvd.local_size() + hvd.cross_rank() + hvd.cross_size(), int)
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
    hvd.allreduce(x, op=hvd.Average, process_set=some)
    hvd.allreduce_(x, op=hvd.Sum)
    hvd.grouped_allreduce([x, x], op=hvd.Max)
    hvd.grouped_allreduce_([x, x], op=hvd.Min)
    hvd.allgather(x)
    hvd.grouped_allgather([x, x])
    hvd.broadcast(x, 0)
    hvd.broadcast_(x, 0)
    hvd.alltoall(x, splits=[1, 1])
    hvd.reducescatter(x, op=hvd.Sum)
    hvd.grouped_reducescatter([x, x])
    hvd.allreduce_(hvd.shared_empty((3, 4), np.float32))
    handles = [
        hvd.allreduce_async(x, op=hvd.Product),
        hvd.allreduce_async_(x, op=hvd.Adasum),
        hvd.allgather_async(x),
        hvd.broadcast_async_(x, 0),
        hvd.alltoall_async(x),
        hvd.reducescatter_async(x),
    ]
    assert_type(handles, list[int])
    for handle in handles:
        assert_type(hvd.poll(handle), bool)
        hvd.synchronize(handle)
    hvd.barrier()
    assert_type(hvd.join(), int)
    assert_type(hvd.remove_process_set(hvd.add_process_set([0])), bool)
    assert_type(hvd.global_process_set.size(), int | None)
    assert_type(hvd.broadcast_object({"a": 1}), Any)
    assert_type(hvd.allgather_object(hvd.rank()), list[int])
    print(hvd.HorovodInternalError, hvd.HostsUpdatedInterrupt)


def on_spark() -> None:
    def train(rate: float) -> int:
        return round(rate) + hvd.rank()

    assert_type(corro.spark.run(train, args=(0.1,), num_proc=2, nics=["lo"], page=True, record="run.corro"), list[int])
    assert_type(corro.spark.run_elastic(train, (0.1,), num_proc=2, max_num_proc=4, report=True), list[int])


class Loader(data.AsyncDataLoaderMixin, data.BaseDataLoader):
    def __len__(self) -> int:
        return 3

    def _iterate(self) -> Any:
        return iter(range(3))


def function_as_a_job() -> None:
    try:
        assert_type(runner.run(divided, (3, 2), num_proc=2, env={"A": "b"}, page=True, logdir="logs"), list[float])
    except runner.JobFailed as failure:
        assert_type(failure.rank, int | None)


def parameter_servers(x: NDArray[np.float32]) -> None:
    for consistency in (ps.BSP(), ps.SSP(bound=3), ps.Async(staleness_lr=False)):
        ps.Store(consistency=consistency, servers="mixed").close()
    with ps.Store() as store:
        for optimizer in (ps.SGD(0.1, momentum=0.9), ps.Adam(), ps.AdamW(), ps.Adagrad(lr=0.1), ps.RowAdagrad()):
            store.set_optimizer(optimizer)
        store.init("x", x, rule="average", compression="int8")
        store.push("x", x, lr=0.1)
        # Which framework's array it is, the program knows: the one that it gave to `init`.
        assert_type(store.pull("x"), Any)
        assert_type(store.pull("x", out=x), NDArray[np.float32])
        pulled = store.pull_async("x")
        assert_type(pulled, ps.Pulled)
        assert_type(pulled.done(), bool)
        assert_type(pulled.wait(out=x), NDArray[np.float32])
        assert_type(store.pushpull("x", x, out=x), NDArray[np.float32])
        store.push_rows("x", [0], x[:1])
        assert_type(store.pull_rows("x", [0], out=x[:1]), NDArray[np.float32])
        assert_type(store.stats(), dict[str, Any])
        store.clock()
        store.barrier()
        store.save("folder")
        store.load("folder")


def processes() -> None:
    Loader(async_loader_queue_size=4).close_async_loader()
    assert_type(split_list([1, 2, 3], 2), list[list[int]])
    assert_type(safe_shell_exec.execute("true", index=0, events=[threading.Event()]), int)
    assert_type(threads.in_thread(print, ("text",)), threading.Thread)
    pipe: streams.Pipe[str] = streams.Pipe()
    assert_type(pipe.read(timeout=1.0), str | None)
    assert_type(network.get_driver_ip(["lo"]), str)
    assert_type(secret.compute_digest(secret.make_secret_key(), b"message"), bytes)
    assert_type(codec.dumps_base64({"a": 1}), str)
    assert_type(host_hash.host_hash(), str)
    try:
        Timeout(1.0, "Timed out waiting for {activity}.").check_time_out_for("ranks")
    except TimeoutException as error:
        print(error)
    print(get_host_assignments(parse_hosts("a:2,b:2"), 4), FixedHosts({"a": 2}).find_available_hosts_and_slots())
    gloo_run(Settings(num_proc=2), None, None, None, ["python", "train.py"])
