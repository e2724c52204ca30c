#!/usr/bin/env python3
"""Two builds of `corro-engine-rounds` beside each other: what a change did to the engine.

    cargo build --release -p corro-bench && cp target/release/corro-engine-rounds /tmp/before
    ... change, build again ...
    bench/before_after.py /tmp/before target/release/corro-engine-rounds [--runs 20] [--only '4 B+16 MB']

The two take turns, in a random order each time. A row's ratio is the time after the change divided by the time before it, of the
same turn; the table has the median and the middle half of all turns. To see what the machine itself does to such a ratio, give
the same build twice.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys

from report import machine, machine_text, table

LIMIT = 600


def measured(program: str, rounds: int, only: str | None) -> dict[str, float]:
    """The median microseconds of each row that the program prints. What goes wrong there, it says itself."""
    command = [program, "--rounds", str(rounds), *(["--only", only] if only else [])]
    try:
        text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT).stdout
    except subprocess.CalledProcessError as error:
        sys.exit(f"before_after: {program} ended with status {error.returncode}, see above")
    except subprocess.TimeoutExpired:
        sys.exit(f"before_after: {program} was not done after {LIMIT} seconds; fewer --rounds?")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: float(row[1]) for row in rows if row[0] != "what" and not row[0].startswith("-")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--runs", type=int, default=20, help="turns; both run once in each")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a run")
    parser.add_argument("--only", help="rows whose names have one of these words, joined by +")
    options = parser.parse_args()
    for program in (options.before, options.after):
        if shutil.which(program) is None:
            parser.error(
                f"{program} is not a program; `cargo build --release -p corro-bench` makes target/release/corro-engine-rounds"
            )
    if options.runs < 2 or options.rounds < 1:
        parser.error("it takes at least 2 --runs of 1 of --rounds")

    print(machine_text(machine()), file=sys.stderr)
    turns = random.Random(7)
    pairs: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.runs):
        programs = {"before": options.before, "after": options.after}
        order = turns.sample(list(programs), 2)
        got = {which: measured(programs[which], options.rounds, options.only) for which in order}
        for name in got["before"].keys() & got["after"].keys():
            pairs.setdefault(name, []).append((got["before"][name], got["after"][name]))
    if not pairs:
        sys.exit(
            "before_after: the two programs have no row in common"
            + (f" that matches {options.only!r}" if options.only else "")
        )
    rows = []
    for name in (name for name in got["after"] if name in pairs):
        before, after = zip(*pairs[name], strict=True)
        low, middle, high = statistics.quantiles([new / old for old, new in pairs[name]], n=4, method="inclusive")
        times = [f"{statistics.median(of):.2f}" for of in (before, after)]
        rows.append([name, *times, f"{middle:.3f} ({low:.3f}-{high:.3f})"])
    print(f"{options.runs} turns of {options.rounds} rounds\n")
    print(table(["what", "before, us", "after, us", "after / before (middle half)"], rows))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("before_after: stopped; nothing is shown of turns that were not all run")
