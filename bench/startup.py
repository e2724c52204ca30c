#!/usr/bin/env python3
"""How long it takes to start a job and to end it: `corro run -np 2` of nothing, and of a script that only joins the job.

    python bench/startup.py [--rounds 15]

A round runs each once, one after the other, so that all see the same machine; a figure is the median over the rounds.
What the launcher adds is the median of the differences within a round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = "import corro\ncorro.init()\n"
LIMIT = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()

    from corro._command import program

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "joins.py")
        script.write_text(SCRIPT)
        alone, job = [sys.executable, str(script)], [program(), "run", "-np", "2"]
        commands = {"true": [*job, "true"], "script alone": alone, "script": [*job, *alone]}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for round_number in range(options.rounds + 1):
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, check=True, timeout=LIMIT, stdout=subprocess.DEVNULL)
                if round_number:  # the first round fills the caches
                    times[name].append((time.perf_counter() - start) * 1e3)

    added = [job - alone for job, alone in zip(times["script"], times["script alone"], strict=True)]
    rows = [
        ("corro run -np 2 true", times["true"], 150.0),
        ("a script that joins and ends, alone", times["script alone"], None),
        ("the same under corro run -np 2", times["script"], None),
        ("what that adds", added, 300.0),
    ]
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; milliseconds, {options.rounds} rounds\n")
    print(f"{'':38s} {'median':>8s} {'least':>8s} {'most':>8s} {'bar':>8s}")
    missed = False
    for name, values, bar in rows:
        middle = statistics.median(values)
        verdict = "" if bar is None else f"{bar:8.0f} {'met' if middle <= bar else 'MISSED'}"
        missed |= bar is not None and middle > bar
        print(f"{name:38s} {middle:8.1f} {min(values):8.1f} {max(values):8.1f} {verdict}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
