"""Who is named when a rank fails: every way to die once. `failing/failing_jobs.py` runs as many jobs as one likes."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

import corro
from corro._command import program

FAILING = Path(__file__).parent / "failing"
sys.path.insert(0, str(FAILING))
from failing_jobs import EXPECTED, LIMIT_SECONDS, MOMENTS, Run  # noqa: E402 - a neighbour of this file

WAYS = sorted(EXPECTED)


@pytest.mark.parametrize("way", WAYS)
def test_the_culprit_is_named(way: str) -> None:
    # Rank 0 agrees for all: it is another matter if it is the one.
    at = WAYS.index(way)
    size, moment = (2, 2, 4)[at % 3], MOMENTS[at % len(MOMENTS)]
    run = Run(size, at % size, way, moment, f"token{at}").start()
    assert not run.faults, "\n".join([*run.faults, run.errors])


@pytest.mark.parametrize("culprit", [0, 1])
def test_peers_know_it_without_our_launcher(culprit: int, tmp_path: Path) -> None:
    """As under torchrun, of which only the variables are there."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "test"}
    env = {**os.environ, **common, "CORRO_JOB_ID": secrets.token_hex(8), "CORRO_MEET_DIR": str(tmp_path)}
    del env["MASTER_PORT"]
    command = [sys.executable, str(FAILING / "program.py"), "raises", str(culprit), "wait", "some words"]
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=LIMIT_SECONDS)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1]
    last = errors[1 - culprit].splitlines()[-1]
    assert f"rank {culprit} on " in last, errors
    assert "failed: ValueError: some words (program.py:" in last, errors


@pytest.mark.parametrize("culprit", [0, 1])
def test_peers_know_it_under_torchrun(culprit: int) -> None:
    """The real one. It ends the others once it sees that one has failed: it is to look after these have spoken."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("this environment has no torch")
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--monitor-interval", "5"]
    command = [*torchrun, str(FAILING / "program.py"), "raises", str(culprit), "wait", "some words"]
    job = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert job.returncode == 1, job.stderr
    told = rf"HorovodInternalError: .*rank {culprit} on .* failed: ValueError: some words \(program\.py:"
    assert re.search(told, job.stderr), job.stderr


def test_a_function_that_fails_on_one_rank() -> None:
    def train() -> None:
        import numpy as np

        import corro.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("layer9")
        for _ in range(1000):
            hvd.allreduce(np.ones(3), name="x")

    with pytest.raises(RuntimeError, match=r"rank 1 on .*KeyError: 'layer9'") as failure:
        corro.run(train, num_proc=2)
    assert isinstance(failure.value.__cause__, KeyError)


ELASTIC = """
import sys, time
import numpy as np
import corro.numpy as hvd
hvd.init()
hvd.allreduce(np.ones(3), name="x")
if hvd.rank() == 1:
    raise ValueError("no such layer")
while True:
    hvd.allreduce(np.ones(3), name="x")
"""


def test_an_elastic_job_that_can_not_go_on(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(ELASTIC)
    command = [program(), "run", "-np", "2", "--min-np", "2", "--reset-limit", "1", sys.executable, str(script)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert job.returncode == 1
    last = job.stderr.splitlines()[-1]
    assert "ValueError: no such layer (job.py:" in last, job.stderr
    assert "failed: ValueError: no such layer" in job.stderr, job.stderr


def test_a_forked_child_does_not_speak_for_its_rank(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import os, numpy as np, corro.numpy as hvd\nhvd.init()\n"
        "if os.fork() == 0:\n    raise ValueError('of the child')\nos.wait()\n"
        "hvd.allreduce(np.ones(3), name='x')\n"
        "if hvd.rank() == 1:\n    raise KeyError('of the rank')\nhvd.allreduce(np.ones(3), name='y')\n"
    )
    command = [program(), "run", "-np", "2", sys.executable, str(script)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    last = job.stderr.splitlines()[-1]
    assert "rank 1 on localhost" in last, job.stderr
    assert "KeyError: 'of the rank'" in last, job.stderr
