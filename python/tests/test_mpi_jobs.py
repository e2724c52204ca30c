"""MPI as the one who knows the ranks: real mpi4py under the real mpiexec of Open MPI and of MPICH.

`scripts/mpi_env` puts all three into .venv-mpi (`make unit` calls it). A fresh clone has none, and says so; in CI, and where
the folder is there, what is missing is a failure.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDER = HERE.parent.parent / ".venv-mpi"
MPI4PY = FOLDER / f"mpi4py-{sys.version_info.major}.{sys.version_info.minor}"
FLAGS = {
    "openmpi": ["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"],
    "mpich": [],
}


def mpiexec(
    kind: str, size: int, *command: str, flags: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    program = FOLDER / kind / "bin" / "mpiexec"
    if not (program.exists() and MPI4PY.exists()):
        why = f"{program} or {MPI4PY} is not there: run scripts/mpi_env {sys.executable}"
        if FOLDER.exists() or os.environ.get("CI", "") not in ("", "0", "false"):
            pytest.fail(why)
        pytest.skip(why)
    mpi4py = {
        "MPI4PY_MPIABI": kind,
        "LD_LIBRARY_PATH": str(FOLDER / kind / "lib"),
        "PYTHONPATH": str(MPI4PY),
    }
    env = {
        **os.environ,
        "CORRO_TIMEOUT": "30",
        "CORRO_CONNECT_TIMEOUT": "60",
        "OMP_NUM_THREADS": "1",
        **mpi4py,
        **variables,
    }
    job = [str(program), *FLAGS[kind], *flags, "-n", str(size), *command]
    return subprocess.run(job, env=env, capture_output=True, text=True, timeout=120, check=False)


def check(job: subprocess.CompletedProcess[str], word: str, times: int) -> None:
    if job.returncode or job.stdout.count(word) != times:
        pytest.fail(f"{job.args}:\n{job.stdout[-4000:]}\n{job.stderr[-4000:]}", pytrace=False)


WORLDS = """
from mpi4py import MPI
import numpy as np
import corro.numpy as hvd
from corro._front import process_sets

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()

def sums(**where):
    return hvd.allreduce(np.full(3, float(rank)), op=hvd.Sum, **where).tolist()

assert hvd.mpi_built() and not hvd.is_initialized()
# A communicator is the world, whatever order its ranks are in; the program may free its own.
turned = world.Split(0, -rank)
hvd.init(comm=turned)
turned.Free()
assert (hvd.rank(), hvd.size()) == (size - 1 - rank, size), hvd.rank()
assert hvd.mpi_enabled() and hvd.mpi_threads_supported() is True
assert sums() == [sum(range(size))] * 3
# The program goes on using MPI at the same time.
handle = hvd.allreduce_async(np.ones(1000), op=hvd.Sum)
assert world.allreduce(rank) == sum(range(size))
assert hvd.synchronize(handle)[0] == size
hvd.shutdown()

# Each rank gives its own communicator; all sets that come of it are there on all.
halves = world.Split(rank % 2, rank)
own = hvd.ProcessSet(halves)
assert own.ranks is None and own.mpi_comm is halves
hvd.init(comm=world, process_sets=[own])
assert own.ranks == [other for other in range(size) if other % 2 == rank % 2], own
assert (own.rank(), own.size()) == (rank // 2, size // 2)
assert sums(process_set=own) == [sum(own.ranks)] * 3
known = sorted(process_sets.ids_and_ranks().values())
assert known == [[0, 1, 2, 3], [0, 2], [1, 3]], known
try:
    hvd.add_process_set(hvd.ProcessSet(halves))
    raise SystemExit("a set from a communicator after init")
except NotImplementedError:
    pass
world.Barrier()  # a shutdown ends the job for all, and the other half may still be at its sum
hvd.shutdown()

# Some ranks of MPI's world, as a world of their own.
part = [other for other in range(size) if other % 2 == rank % 2]
hvd.init(comm=part)
assert (hvd.rank(), hvd.size()) == (rank // 2, size // 2)
assert sums() == [sum(part)] * 3
hvd.shutdown()
try:
    hvd.init(comm=[0, 1], process_sets=[hvd.ProcessSet(halves)])
    raise SystemExit("communicators beside a list of ranks")
except NotImplementedError:
    pass
if rank == 0:
    try:
        hvd.init(comm=[1, 2])
        raise SystemExit("a world without this rank")
    except ValueError as error:
        assert "none of these" in str(error), error
world.Barrier()
assert MPI.Is_initialized() and not MPI.Is_finalized()
print("all worlds were there", flush=True)
"""


# The other pairs are in the conformance tests of corro-planes, without mpi4py.
@pytest.mark.parametrize(("kind", "tensors"), [("openmpi", "corro"), ("mpich", "mpi")])
def test_worlds_and_sets_from_communicators(kind: str, tensors: str) -> None:
    job = mpiexec(kind, 4, sys.executable, "-c", WORLDS, HOROVOD_CPU_OPERATIONS=tensors)
    check(job, "all worlds were there", 4)


CONTROLLED = """
import os
import numpy as np
import corro.numpy as hvd

# Ranks that meet by a file would meet here, and can't.
os.environ["CORRO_MEET_DIR"] = "/nowhere"
hvd.init()
assert hvd.size() == 3 and hvd.mpi_enabled()
total = hvd.allreduce(np.ones(4), op=hvd.Sum)
assert total.tolist() == [3.0] * 4
print("controlled", flush=True)
"""


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_ranks_are_found_through_mpi(kind: str) -> None:
    check(mpiexec(kind, 3, sys.executable, "-c", CONTROLLED, HOROVOD_CONTROLLER="MPI"), "controlled", 3)


LOST = """
import os, signal, threading
import numpy as np
import corro.numpy as hvd

hvd.init()
array = np.ones(1 << 22, np.float32)
for step in range(100_000):
    if hvd.rank() == 1 and step == 20:
        # In the midst of a collective, most likely: the others are inside MPI then.
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
    hvd.allreduce_(array, op=hvd.Average, name="x")
print("nobody was lost", flush=True)
"""
REMOVED = """
import numpy as np
import corro.numpy as hvd

hvd.init()
both = hvd.add_process_set([0, 1])
for step in range(3 if hvd.rank() < 2 else 0):
    assert hvd.allreduce(np.ones(1 << step * 8, np.float32), op=hvd.Sum, name=f"x{step}", process_set=both)[0] == 2
hvd.remove_process_set(both)
assert hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum, name="after")[0] == 3
print("@right", flush=True)
"""


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_a_set_that_is_removed_leaves_mpi_in_order(kind: str) -> None:
    """Else their launchers take a process that ends for one that has failed. Its tensors are the first of the job: MPI,
    whose start takes all processes, has started before."""
    variables = {"CORRO_CPU_OPERATIONS": "mpi", "CORRO_DYNAMIC_PROCESS_SETS": "1"}
    check(mpiexec(kind, 3, sys.executable, "-c", REMOVED, **variables), "@right", 3)


# Else they end the others before these can say anything.
KEEP_THE_OTHERS = {"openmpi": "--enable-recovery", "mpich": "-disable-auto-cleanup"}


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_a_lost_rank_is_named_by_the_others(kind: str) -> None:
    variables = {"CORRO_CPU_OPERATIONS": "mpi", "CORRO_FLIGHT_RECORD_DIR": "none"}
    job = mpiexec(kind, 3, sys.executable, "-c", LOST, flags=(KEEP_THE_OTHERS[kind],), **variables)
    assert job.returncode != 0
    assert "nobody was lost" not in job.stdout
    if kind == "mpich":
        # Its mpiexec ends the others all the same, within milliseconds: often before both, at times before any has spoken.
        # Or it fails itself, when a process to which it has to write is gone: with words, or by SIGPIPE without any.
        own_words = "Killed (signal 9)" in job.stdout or "process manager error" in job.stderr
        own_words = own_words or job.returncode == -signal.SIGPIPE
        assert "lost rank 1 on" in job.stderr or own_words, job.stderr
    else:
        assert job.stderr.count("lost rank 1 on") >= 2, job.stderr


FAILS = """
import time
import numpy as np
import corro.numpy as hvd

hvd.init()
array = np.ones(8, np.float32)
for step in range(100_000):
    if hvd.rank() == 1 and step == 20:
        time.sleep(0.2)
        raise ValueError("no such layer")
    hvd.allreduce_(array, op=hvd.Average, name="x")
"""


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
@pytest.mark.parametrize("tensors", ["corro", "mpi"])
def test_what_a_rank_has_failed_with_is_known_to_the_others(kind: str, tensors: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(FAILS)
    variables = {"CORRO_CPU_OPERATIONS": tensors, "CORRO_FLIGHT_RECORD_DIR": "none"}
    job = mpiexec(kind, 3, sys.executable, str(script), flags=(KEEP_THE_OTHERS[kind],), **variables)
    assert job.returncode != 0
    told = len(re.findall(r"rank 1 on .* failed: ValueError: no such layer \(job\.py:", job.stderr))
    if kind == "mpich":
        # As above: its mpiexec may end the others before they speak, or be ended itself.
        own_words = "BAD TERMINATION" in job.stdout or "process manager error" in job.stderr
        assert told or own_words or job.returncode == -signal.SIGPIPE, job.stdout + job.stderr
    else:
        assert told >= 2, job.stderr
