"""Elastic jobs that lose ranks, get new ones, and go on: real processes, started by `corro run`, killed for real."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "elastic"))
from jobs import LIMIT, Job, alive, check_losses

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
    text = running.finish()
    assert running.launcher.returncode == 1, text
    assert "min-np" in text, text


def test_reset_limit(job, tmp_path):
    """A program that fails each time ends the job, with its own error shown."""
    script = tmp_path / "fails.py"
    script.write_text("import corro, time\ncorro.init()\ntime.sleep(0.2)\nraise ValueError('no such layer')\n")
    running = job("-np", "2", "--min-np", "1", "--reset-limit", "2", script=script)
    text = running.finish()
    assert running.launcher.returncode != 0, text
    assert "no such layer" in text, text


def test_launcher_killed(job):
    """Ranks whose launcher is gone end by themselves."""
    running = job("-np", "3", "--min-np", "2", CORRO_ELASTIC_ORPHAN_TIME="3")
    running.wait_for_steps(15, 3)
    pids = set(running.ranks().values())
    os.kill(running.launcher.pid, signal.SIGKILL)
    running.launcher.wait()
    until = time.monotonic() + LIMIT
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < until, f"ranks outlived their launcher:\n{running.text()}"
        time.sleep(0.05)
