"""Jobs in which one rank fails, and whether the right one is named: `python jobs.py --runs 200 --seed 1`.

Each run has another number of ranks, culprit, way to die and moment, all from the seed. The launcher's last line must name
the culprit and what it said; so must the error of every peer that was told of it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from corro._command import program

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from program import BEFORE_INIT, HELPERS_FAIL, WAYS  # noqa: E402 - a neighbour of this file

SIZES = (2, 4, 8)
MOMENTS = ("wait", "plan", "compute", "wait and exit", "wait and vanish", "wait and wrap")
# Far more than a job takes, also on a busy machine.
LIMIT_SECONDS = 120

CODE = r"exited with non-zero status: exit code {}"
# What the launcher's last line says of the culprit, and what its peers are told; {t} is the token. The latter only where the
# engine is told or can see it.
EXPECTED: dict[str, tuple[str, str | None]] = {
    "raises": (CODE.format(1) + ", after ValueError: {t} (program.py:", "failed: ValueError: {t} (program.py:"),
    HELPERS_FAIL: (CODE.format(1) + ", after ValueError: {t}", "failed: ValueError: {t}"),
    "calls sys.exit": (CODE.format(3), "has ended its program with exit code 3"),
    "raises SystemExit": (CODE.format(3), "has ended its program while"),
    "prints and exits": (CODE.format(6) + ", after ValueError: {t}", "with exit code 6 after ValueError: {t}"),
    "vanishes": (CODE.format(3), "lost rank {c}"),
    "vanishes in good order": ("has ended (exit code 0) while other ranks", "lost rank {c}"),
    "is killed": ("signal 9 (SIGKILL)", "lost rank {c}"),
    "is terminated": ("signal 15 (SIGTERM)", "lost rank {c}"),
    "aborts": ("signal 6 (SIGABRT)", "lost rank {c}"),
    "reads where nothing is": ("signal 11 (SIGSEGV)", "lost rank {c}"),
    "is interrupted": ("signal 2 (SIGINT), after KeyboardInterrupt", "failed: KeyboardInterrupt"),
    "shuts down on its way out": (
        CODE.format(1) + ", after ValueError: {t}",
        "has called shutdown after ValueError: {t}",
    ),
    "raises in a thread": ("has ended (exit code 0) while other ranks", "has ended its program after ValueError: {t}"),
    "raises while a thread waits": (CODE.format(1) + ", after ValueError: {t}", "failed: ValueError: {t}"),
    "calls wrongly": (CODE.format(1) + ", after ", "failed: "),
    "runs out of memory": (CODE.format(1) + ", after numpy", "failed: numpy"),
    "ends early": ("has ended (exit code 0) while other ranks", "has ended its program while"),
    "raises before init": (CODE.format(1) + ", after ValueError: {t}", None),
    "is refused by init": (CODE.format(1) + ", after ValueError: ", None),
}


@dataclass
class Run:
    """One job, and what is wrong with how it was reported."""

    size: int
    culprit: int
    way: str
    moment: str
    token: str
    errors: str = ""
    told: int = 0
    faults: list[str] = field(default_factory=list)

    def start(self) -> Run:
        command = [program(), "run", "-np", str(self.size), sys.executable, str(HERE / "program.py")]
        words = [self.way, str(self.culprit), self.moment, self.token]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CORRO_TIMEOUT": "60"}
        try:
            job = subprocess.run(
                [*command, *words], env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as late:
            self.errors = str(late.stderr)
            self.faults.append(f"still running after {LIMIT_SECONDS} s")
            return self
        self.errors = job.stderr
        if job.returncode == 0:
            self.faults.append("exit code 0")
        self.check_launcher()
        self.check_peers()
        return self

    def check_launcher(self) -> None:
        last = self.errors.splitlines()[-1] if self.errors else ""
        if not last.startswith(f"corro run: rank {self.culprit} on "):
            self.faults.append(f"the launcher's last line names another: {last!r}")
        wanted = EXPECTED[self.way][0].format(t=self.token, c=self.culprit)
        if wanted not in last:
            self.faults.append(f"the launcher's last line does not say {wanted!r}: {last!r}")
        named = set(re.findall(r"(?m)^corro run: .*?\brank (\d+)", self.errors))
        if named - {str(self.culprit)}:
            self.faults.append(f"the launcher has named {sorted(named)}")

    def check_peers(self) -> None:
        """What peers print about the end of the job must blame the culprit; some were ended before they could."""
        wanted = EXPECTED[self.way][1]
        if wanted is None:
            return
        told = [line for line in self.errors.splitlines() if re.match(r"\[\d+\]<stderr>:", line)]
        told = [line for line in told if "Horovod has been shut down" in line or "lost rank" in line]
        told = [line for line in told if not line.startswith(f"[{self.culprit}]")]
        self.told = len(told)
        if wanted.startswith("lost"):
            # Whoever vanishes without a word is seen by the launcher at once, which ends the others while they find out.
            return
        for line in told:
            if wanted.format(t=self.token, c=self.culprit) not in line or f"rank {self.culprit} on " not in line:
                self.faults.append(f"a peer was told: {line!r}")


def chosen(seed: int) -> Run:
    """The run of this number."""
    choice = random.Random(seed)
    size = choice.choice(SIZES)
    way = choice.choice([*WAYS, *BEFORE_INIT])
    return Run(size, choice.randrange(size), way, choice.choice(MOMENTS), f"token{seed}")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    start, wrong, told, ways = time.monotonic(), 0, 0, Counter[str]()
    for seed in range(given.seed, given.seed + given.runs):
        run = chosen(seed).start()
        ways[run.way] += 1
        told += run.told > 0
        if run.faults:
            wrong += 1
            print(
                f"seed {seed}: {run.size} ranks, rank {run.culprit} {run.way}, others {run.moment}:",
                *run.faults,
                sep="\n  ",
            )
            print(run.errors, flush=True)
    spent = time.monotonic() - start
    print(
        f"{given.runs} runs, {len(ways)} ways to die, {wrong} reported wrongly, peers printed why in {told}, {spent:.0f} s"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
