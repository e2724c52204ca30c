"""Runs the tests of `parallel/` on all ranks of jobs of 2 and 4 processes, started by the `corro` program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corro._command import program

HERE = Path(__file__).parent
# TensorFlow and Keras have an environment, and runners, of their own.
FILES = [
    file
    for file in sorted((HERE / "parallel").glob("test_*.py"))
    if not {"tensorflow", "keras"} & {*file.stem.split("_")}
]
# Ranks of a test that goes wrong wait for each other; this must end it long before the limit for the job.
QUIET_SECONDS = "30"


def run_job(size: int, *command: str, timeout: float = 280, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CORRO_TIMEOUT": QUIET_SECONDS, "OMP_NUM_THREADS": "1", **variables}
    job = [program(), "run", "-np", str(size), *command]
    return subprocess.run(job, env=env, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_all_ranks(file: Path, size: int) -> None:
    run_file(file, size)


@pytest.mark.parametrize("overlap", ["0", "1"])
def test_training_with_and_without_overlap(overlap: str) -> None:
    run_file(HERE / "parallel" / "test_torch_training.py", 2, CORRO_OVERLAP=overlap)


def run_file(file: Path, size: int, **variables: str) -> None:
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=120"]
    job = run_job(size, sys.executable, "-m", "pytest", *options, str(file), **variables)
    if job.returncode:
        pytest.fail(f"{file.name} on {size} ranks:\n{job.stdout[-6000:]}\n{job.stderr[-6000:]}", pytrace=False)


JOBS = {
    # name: (ranks, what every rank runs)
    "memory does not grow": (
        2,
        """
import gc, resource, torch, corro.torch as hvd
hvd.init()
x = torch.ones(8)
def resident():
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()
def rounds(n):
    for _ in range(n):
        hvd.allreduce_(x, op=hvd.Max)
        hvd.synchronize(hvd.allreduce_async_(x, op=hvd.Max, name="same"))
        hvd.allgather(x)
rounds(3000)
before = resident()
rounds(10000)
grown = resident() - before
assert grown < 2_000_000, f"{grown} bytes more after 30000 operations"
""",
    ),
    "init and shutdown many times": (
        2,
        """
import torch, corro.torch as hvd
for i in range(50):
    hvd.init()
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum, name="x").tolist() == [2.0] * 3
    assert hvd.allreduce(torch.ones(1)).item() == 1
    hvd.barrier()
    hvd.shutdown()
    hvd.shutdown()
""",
    ),
    "a rank that shuts down ends the job for all": (
        2,
        """
import torch, corro.torch as hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 0:
    hvd.shutdown()
else:
    try:
        for i in range(1000):
            hvd.allreduce(torch.ones(1), name="never")
    except hvd.HorovodInternalError as error:
        assert "Horovod has been shut down" in str(error), error
    else:
        raise AssertionError("rank 0 is gone")
""",
    ),
    "horovod static process sets": (
        4,
        """
import torch, corro.torch as hvd
evens, odds = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])
try:
    hvd.init(process_sets=[evens, hvd.ProcessSet([2, 0])])
except ValueError as error:
    assert "duplicate" in str(error)
hvd.init(process_sets=[evens, odds])
assert (evens.process_set_id, odds.process_set_id) == (1, 2)
mine = odds if hvd.rank() % 2 else evens
assert hvd.allgather(torch.tensor([hvd.rank()]), process_set=mine).tolist() == mine.ranks
try:
    hvd.add_process_set([0, 1])
except ValueError as error:
    assert "HOROVOD_DYNAMIC_PROCESS_SETS=1" in str(error)
hvd.barrier()
hvd.shutdown()
assert evens.process_set_id is None
""",
    ),
    "a timeline from the program": (
        2,
        """
import json, os, tempfile, torch
os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
import corro.torch as hvd
hvd.init()
path = os.path.join(tempfile.gettempdir(), f"corro-timeline-{os.getpid()}.json")
hvd.start_timeline(path)
hvd.allreduce(torch.ones(3), name="watched")
hvd.stop_timeline()
if hvd.rank() == 0:
    with open(path) as file:
        events = json.load(file)
    os.unlink(path)
    assert any("watched" in str(event) for event in events), events
hvd.barrier()
""",
    ),
    "numpy arrays from the root": (
        2,
        """
import numpy as np, corro.numpy as hvd
hvd.init()
mine = np.arange(6, dtype=np.int16).reshape(2, 3) if hvd.rank() == 1 else None
got = hvd.broadcast(mine, 1)
assert got.dtype == np.int16 and got.tolist() == [[0, 1, 2], [3, 4, 5]]
""",
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_job(name: str, tmp_path: Path) -> None:
    size, text = JOBS[name]
    script = tmp_path / "job.py"
    script.write_text(text)
    job = run_job(size, sys.executable, str(script))
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"


def _where(add: int) -> tuple[int, int]:
    import corro

    corro.init()
    return corro.rank() + add, corro.size()


def test_a_function_as_a_job() -> None:
    import corro

    assert corro.run(_where, args=(10,), num_proc=2) == [(10, 2), (11, 2)]
    assert corro.run(lambda: "closure", num_proc=1) == ["closure"]
    with pytest.warns(DeprecationWarning):
        assert corro.run(_where, kwargs={"add": 0}, np=1) == [(0, 1)]


def test_a_function_that_fails() -> None:
    import corro

    def fail() -> None:
        raise ValueError("on purpose")

    with pytest.raises(RuntimeError, match="exited with non-zero status"):
        corro.run(fail, num_proc=2)
    with pytest.raises(ValueError, match="hosts and hostfile"):
        corro.run(fail, hosts="localhost:1", hostfile="hosts")
    with pytest.raises(ValueError, match="use_gloo and use_mpi"):
        corro.run(fail, use_gloo=True, use_mpi=True)
