"""The command line that both drivers share: sizes, rounds, contestants, output; and how a driver ends."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import contestants
import report
from measure import Plan


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help="few sizes, three rounds")
    made.add_argument("--sizes", default="", help="sizes, e.g. 4,16k,1m")
    made.add_argument("--rounds", type=int, default=0, help="rounds per size (5)")
    made.add_argument("--round-seconds", type=float, default=0.2, help="aim for this length of a round (0.2)")
    made.add_argument("--hang-limit", type=float, default=60, help="seconds after which a round counts as hung (60)")
    made.add_argument("--only", default="", help="contestants to run, by name, with commas between; all by default")
    made.add_argument("--corro", type=Path, default=contestants.CORRO, help="Corro's measuring program")
    made.add_argument("--out", type=Path, default=report.RESULTS, help="folder for the results (bench/results)")
    return made


def plan(chosen: argparse.Namespace) -> Plan:
    return Plan(chosen.rounds or (3 if chosen.quick else 5), chosen.round_seconds, chosen.hang_limit)


def sizes(chosen: argparse.Namespace, full: list[int], quick: list[int]) -> list[int]:
    if chosen.sizes:
        return [report.parse_size(word) for word in chosen.sizes.split(",")]
    return quick if chosen.quick else full


def wanted(chosen: argparse.Namespace, name: str) -> bool:
    return not chosen.only or name in chosen.only.split(",")


def run_driver(main: Callable[[], None]) -> None:
    """Runs a driver so that contestants and namespaces are also cleared away on Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted")
