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
import statistics
import subprocess


def measured(program: str, rounds: int, only: str | None) -> dict[str, float]:
    """The median microseconds of each row that the program prints."""
    command = [program, "--rounds", str(rounds), *(["--only", only] if only else [])]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout
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

    turns = random.Random(7)
    pairs: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.runs):
        programs = {"before": options.before, "after": options.after}
        order = turns.sample(list(programs), 2)
        got = {which: measured(programs[which], options.rounds, options.only) for which in order}
        for name in got["before"].keys() & got["after"].keys():
            pairs.setdefault(name, []).append((got["before"][name], got["after"][name]))
    print(f"{options.runs} turns of {options.rounds} rounds\n")
    print("| what | before, us | after, us | after / before, median (middle half) |\n| --- | ---: | ---: | --- |")
    for name in (name for name in got["after"] if name in pairs):
        before, after = zip(*pairs[name], strict=True)
        ratios = [new / old for old, new in pairs[name]]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(
            f"| {name} | {statistics.median(before):.2f} | {statistics.median(after):.2f} "
            f"| {middle:.3f} ({low:.3f}-{high:.3f}) |"
        )


if __name__ == "__main__":
    main()
