"""Jobs with parameter servers that the launcher has started: they are used, one is killed, and they end with the job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from test_jobs import run_job

SCRIPT = """
import os, signal, sys, time
import numpy as np
import corro.numpy as hvd
from corro import ps

hvd.init()

def parent(process):
    with open(f"/proc/{process}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])

def servers():
    launcher = parent(os.getppid())
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read().split(b"\\0")
            if b"server" in words and parent(process) == launcher:
                found.append(int(process))
        except OSError:
            pass
    return found

start = np.arange(300_000, dtype=np.float32)
with ps.Store() as store:
    store.set_optimizer(ps.Adam(lr=0.01))
    store.init("owned", start)
    store.init("summed", start, rule="sum")
    for step in range(30):
        if step == 10 and hvd.rank() == 0 and sys.argv[1] == "kill":
            os.kill(servers()[1], signal.SIGKILL)
        store.push("summed", np.full(300_000, hvd.rank() + step, np.float32))
        store.push("owned", np.random.default_rng(10 * step + hvd.rank()).random(300_000, np.float32) - 0.5)
        total = store.pull("summed")
        assert (total == 2 * step + 1).all(), (step, total)
        owned = store.pull("owned")
    stats = store.stats()
    store.barrier()
if hvd.rank() == 0:
    lost = len(stats["lost_servers"])
    print(f"servers {len(stats['servers'])} lost {lost} sum {owned.tobytes().hex()[:64]} {owned.astype(np.float64).sum()!r}")
    print("pids", *servers())
"""


def result(job: object) -> str:
    said = f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"  # type: ignore[attr-defined]
    assert job.returncode == 0, said  # type: ignore[attr-defined]
    return next(line for line in job.stdout.splitlines() if "servers" in line)  # type: ignore[attr-defined]


def test_servers_are_started_survived_and_ended(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    whole = run_job(2, "--no-prefix", "--servers", "3", sys.executable, str(script), "live")
    one_less = run_job(2, "--no-prefix", "--servers", "3", sys.executable, str(script), "kill")
    colocated = run_job(2, "--no-prefix", sys.executable, str(script), "live")
    first, second, third = result(whole), result(one_less), result(colocated)
    assert "servers 3 lost 0" in first
    assert "servers 2 lost 1" in second
    assert "servers 2 lost 0" in third
    # Whoever has summed and updated, the bits are the same.
    assert len({line.split("sum ")[1] for line in (first, second, third)}) == 1
    for job in (whole, one_less):
        pids = next(line for line in job.stdout.splitlines() if line.startswith("pids")).split()[1:]
        assert pids
        assert not any(is_running(int(pid)) for pid in pids)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_wrong_hosts_are_named() -> None:
    job = run_job(1, "--server-hosts", "no-such-host.invalid", "--start-timeout", "3", "true")
    assert job.returncode != 0, job.stderr
    assert "no-such-host.invalid" in job.stderr, job.stderr
