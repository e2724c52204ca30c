"""Elastic jobs that lose ranks, get new ones, and go on: real processes, started by `corro run`, killed for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corro._command import program

sys.path.insert(0, str(Path(__file__).parent / "elastic"))
from jobs import LIMIT, Job, Scheduler, alive, check_losses

# How often the ranks come and go; the long form is CORRO_TEST_RESIZES=50.
RESIZES = int(os.environ.get("CORRO_TEST_RESIZES", "6"))


@pytest.fixture
def job(tmp_path):
    """Makes jobs, and sees that they leave nothing behind."""
    made = []
    before = segments()

    def make(*options, discovered=None, **kwargs):
        start = Job if discovered is None else lambda *a, **k: Job.discovered(a[0], discovered, *a[1:], **k)
        made.append(start(tmp_path, options, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.leave_nothing()
    assert segments() <= before, "shared memory outlived its job"


def children(launcher):
    """The workers of a job: processes that run the script, below the launcher."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    family, grew = {launcher}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family, grew = family | more, bool(more)
    return sorted(pid for pid in family if Path(f"/proc/{pid}/comm").read_text().startswith("python"))


def segments():
    return {file.name for file in Path("/dev/shm").iterdir() if file.name.startswith("corro")}


def end_well(job, size=None):
    """The job goes on to the end of an epoch, and ends as if nothing had happened."""
    job.more_steps(10, size)
    job.stop()
    text = job.finish()
    assert job.launcher.returncode == 0, text
    assert not job.events("error"), job.events("error")
    ends = job.events("end")
    assert {e["rank"] for e in ends} == set(range(ends[0]["size"])), ends
    assert all(e["losses"] == ends[0]["losses"] for e in ends), "the ranks do not agree on what they did"
    check_losses(ends[0]["losses"])
    return text


def test_without_trouble(job):
    running = job("-np", "2", "--min-np", "1")
    text = end_well(running, 2)
    assert len(running.events("start")) == 2, text


STARTS_A_CHILD = """
import os, subprocess, sys
import numpy as np, corro.numpy as hvd
hvd.init()
if hvd.rank() == 0:
    program = "import corro.numpy as hvd; hvd.init()"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert child.returncode == 1, child
    assert f"of this job is held by process {os.getpid()} on " in child.stderr, child.stderr
    assert "worker" in child.stderr, child.stderr
assert hvd.allreduce(np.ones(1), op=hvd.Sum).tolist() == [2.0]
print("together", hvd.size())
"""


def test_what_a_worker_starts_is_no_worker():
    command = [program(), "run", "-np", "2", "--min-np", "1", sys.executable, "-c", STARTS_A_CHILD]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("together 2") == 2, ended.stdout


@pytest.mark.parametrize("victims", [(3,), (0,), (1, 3), (0, 2)], ids=["one", "rank 0", "two at once", "half"])
def test_killed_in_training(job, victims):
    running = job("-np", "4", "--min-np", "2")
    running.wait_for_steps(20, 4)
    steps = max(e["steps"] for e in running.events("step"))
    killed = running.kill(*victims)
    survivors = set(running.ranks().values()) - set(killed)
    running.wait_for_steps(steps + 1, after=time.monotonic())
    # Survivors keep their processes, and the lost ones are replaced.
    running.more_steps(5, 4)
    assert survivors <= set(running.ranks().values())
    text = end_well(running)
    assert "SIGKILL" in text or "signal 9" in text, text


@pytest.mark.parametrize("place", ["before init", "after init", "sync at the last rank", "save", "saved"])
def test_killed_at(job, place):
    running = job("-np", "4", "--min-np", "2", fault=place)
    running.wait("the fault", lambda: running.events("fault"))
    running.wait_for_steps(30, 4)
    end_well(running)


@pytest.mark.parametrize("place", ["sync at rank 0", "reset"])
def test_killed_while_others_recover(job, place):
    """A second loss while the state is being sent around: the ranks that had it before still have it."""
    running = job("-np", "4", "--min-np", "2", fault=place)
    running.wait_for_steps(20, 4)
    running.kill(3)
    fault = running.wait("the fault", lambda: running.events("fault"))[0]
    running.wait_for_steps(20, after=fault["time"])
    end_well(running)


def test_stopped(job):
    """A rank that is stopped is named and replaced; it never comes back."""
    running = job("-np", "3", "--min-np", "2")
    running.wait_for_steps(15, 3)
    (stopped,) = running.kill(1, sign=signal.SIGSTOP)
    running.more_steps(10)
    running.wait("the stopped process to be gone", lambda: not alive(stopped))
    text = end_well(running)
    assert "rank 1" in text, text


def test_resized(job):
    """Ranks come and go by the discovery script; every sample is used once in each epoch, and the loss has no jump."""
    running = job("-np", "2", "--min-np", "1", "--max-np", "4", discovered=2, ELASTIC_PACE="0.01")
    running.wait_for_steps(5, 2)
    sizes = [3, 1, 4, 2, 3, 2]
    for i in range(RESIZES):
        running.set_slots(sizes[i % len(sizes)])
        running.more_steps(3, sizes[i % len(sizes)])
    end_well(running)
    # Nobody was lost in all this: those who were there from the beginning are still there, as long as there was room.
    assert not running.events("fault")


def test_below_min_np(job):
    """Too few slots for too long: the job says so and ends."""
    running = job("-np", "2", "--min-np", "2", "--elastic-timeout", "3", discovered=2)
    running.wait_for_steps(10, 2)
    running.set_slots(1)
    # As long as it lives, a rank is not sent away below the minimum; but there is no place to start another.
    time.sleep(2)
    running.more_steps(10, 2)
    running.kill(1)
    text = running.finish()
    assert running.launcher.returncode != 0, text
    assert "min-np" in text, text


def test_reset_limit(job, tmp_path):
    """A program that fails each time ends the job, with its own error shown."""
    script = tmp_path / "fails.py"
    script.write_text("import corro, time\ncorro.init()\ntime.sleep(0.2)\nraise ValueError('no such layer')\n")
    running = job("-np", "2", "--min-np", "1", "--reset-limit", "2", script=script)
    text = running.finish()
    assert running.launcher.returncode != 0, text
    assert "no such layer" in text, text


SETS = """
import os, signal
import numpy as np
import corro.numpy as hvd
from corro._front.elastic import ObjectState, restart, run_fn
from corro._front.objects import broadcast_object

outer, inner = hvd.ProcessSet([0, 3]), hvd.ProcessSet([0, 1])
hvd.init(process_sets=[outer, inner])

def train(state):
    assert (outer.process_set_id, inner.process_set_id) == (1, 2)
    if hvd.rank() in inner.ranks:
        assert hvd.allgather(np.array([hvd.rank()]), process_set=inner).tolist() == [0, 1]
    if hvd.size() == 4:
        state.commit()
        if hvd.rank() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()
    try:
        hvd.allreduce(np.ones(1), process_set=outer)
    except ValueError as error:
        assert "does not exist at present" in str(error), error
        print("as it should be", flush=True)
    hvd.barrier()

run_fn(train, restart)(ObjectState(broadcast_object, hvd.rank, step=0))
"""


def test_process_sets_are_made_again(job, tmp_path):
    script = tmp_path / "sets.py"
    script.write_text(SETS)
    running = job("-np", "4", "--min-np", "2", script=script)
    text = running.finish()
    assert running.launcher.returncode == 0, text
    assert text.count("as it should be") == 3, text


def test_a_torch_training(job):
    """The example, with a rank killed in the middle."""
    pytest.importorskip("sklearn")
    example = Path(__file__).parents[2] / "examples" / "torch" / "elastic_digits.py"
    running = job("-np", "2", "--min-np", "1", script=example, arguments=["--epochs", "6"])
    running.wait("the second epoch", lambda: "epoch 2 " in running.text())
    os.kill(children(running.launcher.pid)[-1], signal.SIGKILL)
    text = running.finish(200)
    assert running.launcher.returncode == 0, text
    accuracy = float(text.rsplit("test accuracy ", 1)[1].split("%")[0])
    assert accuracy > 90, text


@pytest.mark.parametrize("victim", [1, 0], ids=["another", "the one that holds the driver"])
def test_under_a_scheduler(tmp_path, victim):
    """Without a launcher: somebody starts processes, and starts them again when they are lost; they find the job again."""
    scheduler = Scheduler(tmp_path, 3)
    try:
        scheduler.wait_for_steps(20, 3)
        scheduler.processes[victim].kill()
        scheduler.processes[victim].wait()
        scheduler.start(victim)
        scheduler.more_steps(10, 3)
        scheduler.stop()
        for process in scheduler.processes.values():
            assert process.wait(LIMIT) == 0, scheduler.text()
        ends = scheduler.events("end")
        assert {e["rank"] for e in ends} == {0, 1, 2}
        assert not scheduler.events("error")
        check_losses(ends[0]["losses"])
    finally:
        for process in scheduler.processes.values():
            process.kill()
            process.wait()


def test_launcher_killed(job):
    """Ranks whose launcher is gone end by themselves."""
    running = job("-np", "3", "--min-np", "2")
    running.wait_for_steps(15, 3)
    pids = set(running.ranks().values())
    os.kill(running.launcher.pid, signal.SIGKILL)
    running.launcher.wait()
    until = time.monotonic() + LIMIT
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < until, f"ranks outlived their launcher:\n{running.text()}"
        time.sleep(0.05)
