"""Runs tests again and again on a machine that is busy, and says how often what failed.

flaky.py [--runs 10] [--load 4] [rust] [torch] [tensorflow] [jax] [mxnet]

Each run is a whole run of those tests. Beside them go so many processes that do nothing but compute, so that threads are
put aside for long in the middle of anything: what holds only while a machine is quiet fails here. Ends with 1 if anything
failed. What must be built is built before the first run, without the load.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "target" / "flaky"
# Their environments.
FRAMEWORKS = {"torch": "new", "tensorflow": "tf", "jax": "jax", "mxnet": "mxnet"}


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def prepare(what: list[str]) -> None:
    if "rust" in what:
        subprocess.run(["scripts/mpi_env"], cwd=ROOT, check=True)
        subprocess.run([sys.executable, "scripts/rust_test.py", "--build"], cwd=ROOT, check=True)
    if FRAMEWORKS.keys() & {*what}:
        subprocess.run(
            ["scripts/wheel"], cwd=ROOT, check=True, env=os.environ | {"CORRO_GLIBC": "here", "CORRO_PROFILE": "dev"}
        )
    for name in FRAMEWORKS.keys() & {*what}:
        subprocess.run(["scripts/python_install", FRAMEWORKS[name]], cwd=ROOT, check=True)


def run(what: str, number: int) -> Path:
    """One run; where its report is. That it fails is no news here."""
    log, report = REPORTS / f"{what}-{number}.log", REPORTS / f"{what}-{number}.xml"
    if what == "rust":
        command, env = [sys.executable, "scripts/rust_test.py", "--report", str(report)], {}
    else:
        command = ["scripts/python_test", "--only-tests", FRAMEWORKS[what]]
        env = {"CORRO_TEST_REPORT": str(report)}
    with log.open("w") as output:
        subprocess.run(command, cwd=ROOT, check=False, stdout=output, stderr=subprocess.STDOUT, env=os.environ | env)
    return report


def failures(report: Path) -> dict[str, str]:
    """Tests that failed, and the first line of why; a run without a report has failed as a whole."""
    if not report.exists():
        return {f"{report.stem}: the run itself": f"there is no report; see {report.with_suffix('.log')}"}
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        for wrong in [*case.findall("failure"), *case.findall("error")]:
            text = (wrong.get("message") or wrong.text or "").strip()
            found[f"{case.get('classname')} {case.get('name')}"] = text.splitlines()[0] if text else ""
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--load", type=int, default=4, help="busy processes beside the tests")
    parser.add_argument("what", nargs="*", default=["rust", *FRAMEWORKS])
    options = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)
    prepare(options.what)
    often: collections.Counter[str] = collections.Counter()
    reasons: dict[str, str] = {}
    bad = 0
    with load(options.load):
        for number in range(1, options.runs + 1):
            begin, failed = time.monotonic(), {}
            for what in options.what:
                failed |= failures(run(what, number))
            bad += bool(failed)
            often.update(failed)
            reasons |= failed
            seconds = time.monotonic() - begin
            print(
                f"run {number} of {options.runs}: {len(failed)} failed, {seconds:.0f} s",
                *failed,
                sep="\n  ",
                flush=True,
            )
    print(f"{options.runs - bad} of {options.runs} runs passed beside {options.load} busy processes")
    for name, count in often.most_common():
        print(f"  {count} of {options.runs}: {name}: {reasons[name][:200]}")
    print(f"logs and reports: {REPORTS}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
