"""Jobs that are watched, as whole programs with PyTorch: what the recording says is what happened."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_jobs import run_job

from corro._command import program

TRAINING = """
import sys, time, torch
import corro.torch as hvd

hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 1))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
torch.manual_seed(hvd.rank())
for step in range(40):
    time.sleep(0.1 if hvd.rank() == 1 else 0.02)  # by much: others may share these cores
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hvd.log(step=step, loss=loss, rank=hvd.rank())
print("done", hvd.rank())
"""


def test_a_slow_rank_is_named_and_values_are_averaged(tmp_path: Path) -> None:
    script, record, logs = tmp_path / "train.py", tmp_path / "run.corro", tmp_path / "logs"
    script.write_text(TRAINING)
    job = run_job(3, "--record", str(record), "--report", "--logdir", str(logs), sys.executable, str(script))
    said = f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
    assert job.returncode == 0, said
    recorded = json.loads(record.read_text())
    assert (recorded["state"], recorded["size"]) == ("done", 3), said
    for rank in recorded["ranks"]:
        assert (rank["steps_are_told"], rank["step"]) == (True, 40), rank
        assert abs(sum(rank["shares"]) - 1) < 0.02, rank
        assert rank["step_ms"] >= 20, rank
    slowest = max(recorded["ranks"], key=lambda rank: rank["last"])
    assert slowest["rank"] == 1, recorded["ranks"]
    assert "rank 1 on localhost computes" in job.stderr, said
    values = [json.loads(line) for line in (logs / "values.jsonl").read_text().splitlines()]
    means = [v["value"] for v in values if v["name"] == "rank"]
    assert means == [1.0] * 40
    assert {v["ranks"] for v in values} == {3}
    assert "done 2" in (logs / "rank.2" / "stdout").read_text()


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.skipif(not os.environ.get("CORRO_TEST_THOROUGH"), reason="a large model: `make deep` does it")
def test_alexnet_leaves_a_picture_of_its_run(tmp_path: Path) -> None:
    record, picture = tmp_path / "run.corro", tmp_path / "run.html"
    script = [str(EXAMPLES / "torch" / "alexnet.py"), "--image-size", "64", "--batch-size", "1", "--iterations", "4"]
    job = run_job(2, "--record", str(record), sys.executable, *script)
    assert job.returncode == 0, job.stderr[-3000:]
    report = [program(), "report", str(record), "--html", str(picture)]
    said = subprocess.run(report, capture_output=True, text=True, check=True).stdout
    assert "images_per_second" in said, said
    # 61 million parameters: the first fully connected layer has most of them, 151 MB.
    assert re.search(r"\n +\d+ +[\d.]+ +150\.995 .*grouped_allreduce", said), said
    recorded = json.loads(record.read_text())
    assert [step for step, _ in recorded["training"]["images_per_second"]] == [1, 2, 3, 4]
    assert "window.RECORDING=" in picture.read_text()


def test_the_notebook_runs(tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "notebooks" / "watching.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    script = tmp_path / "notebook.py"
    script.write_text(code)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(script)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "step    0  loss" in ran.stdout, ran.stdout
    assert "2 ranks" in ran.stdout, ran.stdout
    (whole,) = tmp_path.glob("*/report.html")
    assert "window.RECORDING=" in whole.read_text()


def test_the_python_launcher_watches(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        """
import corro, sys

def train():
    import numpy, time
    import corro.numpy as hvd
    hvd.init()
    for step in range(30):
        hvd.allreduce(numpy.ones(10), name="x")
        hvd.log(step=step, loss=1.0)
        time.sleep(0.02)
    return hvd.rank()

print(corro.run(train, num_proc=2, page=True, record=sys.argv[1], report=sys.argv[2], watch=True))
"""
    )
    record, report = tmp_path / "run.corro", tmp_path / "report.html"
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, str(script), str(record), str(report)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "[0, 1]" in ran.stdout, ran.stdout
    assert "corro.run: watch this job at http://127.0.0.1:" in ran.stderr, ran.stderr
    assert json.loads(record.read_text())["state"] == "done"
    assert "window.RECORDING=" in report.read_text()


HANGING = """
import threading, time, torch
import corro.torch as hvd

hvd.init()
def somewhere_else():
    time.sleep(60)

hvd.allreduce(torch.ones(3))
if hvd.rank() == 1:
    print("hangs", flush=True)
    somewhere_else()
hvd.allreduce(torch.ones(3), name="never")
"""


def test_a_rank_that_hangs_says_where(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HANGING)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [program(), "run", "-np", "2", "--watch", sys.executable, str(script)]
    job = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert job.stdout is not None
        assert "hangs" in next(line for line in job.stdout if "hangs" in line)
        deadline = time.monotonic() + 60
        said = ""
        while "somewhere_else" not in said and time.monotonic() < deadline:
            asked = subprocess.run(
                [program(), "stacks"], env=env, capture_output=True, text=True, timeout=30, check=False
            )
            said = asked.stdout + asked.stderr
        assert f'File "{script}", line 7 in somewhere_else' in said, said
        assert "rank 0 on localhost:" in said, said
        # A program that waits for it: nothing is ended by being asked.
        assert job.poll() is None
    finally:
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=60)
