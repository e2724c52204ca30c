"""Elastic jobs that train by parameter servers: a rank and the server in it are killed, and training goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "elastic"))
from jobs import Job

pytest.importorskip("torch")

WORKER = Path(__file__).parent / "elastic" / "ps_worker.py"


@pytest.mark.parametrize(("staleness", "victim"), [(0, -1), (0, 0), (0, 2), (2, 1)])
def test_killed_in_training(tmp_path: Path, staleness: int, victim: int) -> None:
    variables = {"ELASTIC_VICTIM": str(victim), "ELASTIC_STALENESS": str(staleness)}
    job = Job(tmp_path, ["-np", "3", "--min-np", "2"], script=WORKER, **variables)
    try:
        text = job.finish()
        assert job.launcher.returncode == 0, text
    finally:
        job.leave_nothing()
    ends = job.events("end")
    assert {e["rank"] for e in ends} == set(range(ends[0]["size"])), ends
    assert all(e["steps"] == 120 for e in ends), ends
    for end in ends:
        assert max(abs(w - t) for w, t in zip(end["values"], (1, 2, 3, 4), strict=True)) < 0.05, ends
        if staleness == 0:
            assert end["values"] == ends[0]["values"], "ranks end alike"
    if victim >= 0:
        # The others have kept their processes, and what was committed.
        survivors = {e["pid"] for e in job.events("step") if e["steps"] < 30} & {e["pid"] for e in ends}
        assert len(survivors) >= 2, text
        assert all(e["steps"] >= 30 for e in job.events("begin") if e["steps"] > 0), text
