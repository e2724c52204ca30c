"""Elastic jobs whose ranks take steps of their own: whoever is lost loses its own, and nobody else any."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "elastic"))
from jobs import Job

WORKER = Path(__file__).parent / "elastic" / "local_worker.py"


@pytest.mark.parametrize("victim", [-1, 0, 2], ids=["nobody", "rank 0", "rank 2"])
def test_killed_while_a_fragment_is_on_its_way(tmp_path, victim):
    job = Job(tmp_path, ["-np", "3", "--min-np", "2"], script=WORKER, ELASTIC_VICTIM=str(victim))
    try:
        text = job.finish()
        assert job.launcher.returncode == 0, text
    finally:
        job.leave_nothing()
    ends = job.events("end")
    assert {e["rank"] for e in ends} == set(range(ends[0]["size"])), ends
    assert all(e["steps"] == 60 and e["values"] == ends[0]["values"] for e in ends), "ranks end alike"
    # Together ranks are drawn to the mean of 1, 2 and 3; while one was missing, to that of the others.
    assert 1.3 < ends[0]["values"][0] < 2.7
    if victim < 0:
        assert len(ends) == 3
        assert [e["own"] for e in ends] == [60] * 3
        return
    survivors = {e["pid"] for e in job.events("begin") if e["steps"] == 0} & {e["pid"] for e in ends}
    assert len(survivors) == 2, job.events("begin")
    # A survivor that was behind rank 0 takes its counter; none does a step twice.
    for end in (e for e in ends if e["pid"] in survivors):
        assert 58 <= end["own"] <= 62, "survivors keep their steps"
    newcomers = [e for e in job.events("begin") if e["pid"] not in survivors and e["steps"] > 0]
    assert all(e["mean"] > 0.1 for e in newcomers), "a new rank has what the others have in common"
