"""A world of one: scripts must run without a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import corro
import corro.numpy
import corro.torch as hvd
from corro._command import program


@pytest.fixture(autouse=True)
def _alone():
    corro.init()
    yield
    corro.shutdown()


def test_every_operation():
    x = torch.arange(6.0).reshape(2, 3)
    for y in (
        hvd.allreduce(x),
        hvd.allgather(x),
        hvd.broadcast(x, 0),
        hvd.alltoall(x),
        hvd.reducescatter(x),
        hvd.grouped_allreduce([x])[0],
        hvd.synchronize(hvd.allreduce_async(x)),
    ):
        torch.testing.assert_close(y, x)
    assert hvd.join() == 0
    hvd.barrier()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (
        *(0, 1, 0, 1, 0, 1),
    )
    assert hvd.allgather_object("x") == ["x"]
    assert corro.is_homogeneous()


def test_numpy_broadcast_of_a_list():
    assert corro.numpy.broadcast([1, 2], 0).tolist() == [1, 2]
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        corro.numpy.allreduce_(array)
    with pytest.raises(ValueError, match="not supported"):
        corro.numpy.allreduce(np.array(["a"]))


def test_training_without_a_launcher():
    net = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters()), net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def test_init_again_and_again():
    for _ in range(50):
        corro.shutdown()
        with pytest.raises((ValueError, hvd.HorovodInternalError)):
            hvd.allreduce(torch.ones(1))
        corro.init()
        corro.init()
        assert hvd.allreduce(torch.ones(1)).item() == 1


def test_process_sets_of_one():
    corro.shutdown()
    with pytest.raises(ValueError, match="duplicate process set"):
        corro.init(process_sets=[corro.ProcessSet([0])])
    assert corro.is_initialized()
    corro.init(process_sets=[])
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS=1"):
        corro.add_process_set([0])
    assert corro.global_process_set.ranks == [0]
    assert corro.global_process_set.process_set_id == 0


def test_sub_worlds_are_refused():
    with pytest.raises(ValueError, match="process set"):
        corro.init(comm=[0, 1])
    corro.init(comm=[0])


def test_timeline_must_be_allowed_at_start():
    with pytest.raises(ValueError, match="HOROVOD_TIMELINE=DYNAMIC"):
        corro.start_timeline("unused.json")
    corro.stop_timeline()


def test_what_is_built():
    assert hvd.gloo_built()
    assert hvd.gloo_enabled()
    assert not hvd.mpi_built()
    assert hvd.nccl_built() == 0
    with pytest.raises(ValueError, match="MPI"):
        hvd.mpi_threads_supported()


def test_check_build_says_the_same(tmp_path):
    table = subprocess.run([program(), "run", "--check-build"], capture_output=True, text=True, check=True).stdout
    operations = table.split("Available Tensor Operations:")[1]
    built = {
        "NCCL": hvd.nccl_built(),
        "DDL": hvd.ddl_built(),
        "CCL": hvd.ccl_built(),
        "MPI": hvd.mpi_built(),
        "Gloo": hvd.gloo_built(),
    }
    for name, there in built.items():
        assert f"[{'X' if there else ' '}] {name}\n" in operations, table

    # Where mpi4py is, MPI can be used: of it, only whether it is there counts.
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PATH": path}
    for command, word in [
        ([program(), "run", "--check-build"], "Operations:\n    [ ] NCCL\n    [ ] DDL\n    [ ] CCL\n    [X] MPI\n"),
        ([sys.executable, "-c", "import corro.numpy as hvd; print('built:', hvd.mpi_built())"], "built: True"),
    ]:
        assert word in subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


def test_custom_operators_pass_torchs_own_checks():
    x = torch.ones(2, 3, requires_grad=True)
    operators = torch.ops.corro
    torch.library.opcheck(operators.allreduce.default, (x, 0, "", 1, 1.0, 1.0))
    torch.library.opcheck(operators.broadcast.default, (x, 0, 0, ""))
    torch.library.opcheck(operators.allreduce_.default, (x.detach(), 0, "", 1, 1.0, 1.0))
    torch.library.opcheck(operators.reducescatter.default, (x, 0, "", 1, 1.0, 1.0))


def test_horovods_name():
    script = """
import horovod, horovod.torch as hvd, horovod.torch.elastic.sampler
import corro, corro.torch, corro.runner
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import split_list
assert horovod.__version__ == "0.28.1"
assert hvd is corro.torch and horovod.torch.mpi_ops is corro.torch.mpi_ops
assert hvd.__name__ == "corro.torch" and hvd.__spec__.name == "corro.torch"
assert HorovodInternalError is corro.HorovodInternalError
assert horovod.run is horovod.runner.run is corro.runner.run
try:
    import horovod.nothing
except ModuleNotFoundError as error:
    assert "horovod.nothing" in str(error)
else:
    raise AssertionError("horovod.nothing does not exist")
hvd.init(); assert corro.is_initialized()
"""
    shim = Path(__file__).parents[2] / "corro-horovod"
    path = os.pathsep.join([str(shim), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    env = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", script], check=True, env=env, timeout=120)
    module = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable, "-c", "print('as a program')"]
    job = subprocess.run(module, check=True, env=env, timeout=120, capture_output=True, text=True)
    assert job.stdout.count("as a program") == 2


def test_without_a_framework():
    script = """
import sys
for name in ("torch", "numpy"):
    sys.modules[name] = None
import corro
corro.init()
assert corro.size() == 1
try:
    import corro.torch
except ImportError as error:
    assert "pip install torch" in str(error), error
else:
    raise AssertionError("corro.torch cannot work without torch")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
