#!/usr/bin/env python3
"""Allreduce of 25 million gradients between hosts (network namespaces), plain and by each compression, over slow links.

Needs root and iproute2; says so and ends well where they are missing. Run it with a Python that has Corro and numpy.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import report
from contestants import Unable
from switch import LIMITS, Switch, hosts_on_a_switch

RANK = Path(__file__).resolve().parent / "peers" / "compressed_rounds.py"
INSIDE = "inside one host"


@dataclass(frozen=True)
class Leg:
    """Hosts, ranks of each and the link between them; and how many times faster than plain a way must be there."""

    hosts: int
    ranks: int
    link: str
    bars: dict[str, float]
    # So many times the rounds: where an allreduce takes milliseconds, the median of a few is chance.
    more: int = 1

    def text(self) -> str:
        return f"{self.ranks} ranks {INSIDE}" if self.link == INSIDE else f"{self.hosts} hosts, {self.link}"


LEGS = [
    Leg(4, 1, "100 Mbit/s", {"int8": 3.5, "onebit": 15, "powersgd rank=4": 20}),
    Leg(2, 1, "1 Gbit/s", {"int8": 3}, more=3),
    Leg(2, 1, "10 Gbit/s", {"int8": 1.3}, more=5),
    # There the right choice is none, and every way is a plain allreduce.
    Leg(1, 2, INSIDE, {}, more=15),
]
WAYS = ["none", "auto", "bf16", "int8", "int4", "onebit", "powersgd rank=4", "topk density=0.01"]


def measure(switch: Switch, leg: Leg, ways: list[str], rounds: int) -> dict[str, float]:
    """Median seconds of each way."""
    said = switch.ranks_on_each([str(RANK), json.dumps(ways), str(rounds * leg.more)], 1800, leg.ranks)
    seconds: dict[str, list[float]] = json.loads(said[0])["seconds"]
    return {way: statistics.median(times) for way, times in seconds.items()}


def auto_text(leg: Leg, seconds: dict[str, float]) -> str:
    """`auto` beside the best of what it chooses from; inside a host all are the same."""
    choices = ["none"] if leg.link == INSIDE else ["none", "bf16", "int8"]
    among = {way: seconds[way] for way in choices if way in seconds}
    if "auto" not in seconds or not among:
        return ""
    best = min(among, key=among.__getitem__)
    over = seconds["auto"] / among[best]
    return f"\n`auto` takes {over:.3f} times as long as {best}, the best it can choose (bar 1.05: {'met' if over <= 1.05 else 'MISSED'})"


def table(leg: Leg, seconds: dict[str, float]) -> str:
    rows = []
    for way, time in seconds.items():
        faster = seconds["none"] / time
        bar = leg.bars.get(way)
        verdict = "-" if bar is None else f"{bar} {'met' if faster >= bar else 'MISSED'}"
        rows.append([way, f"{time:.3f} s", f"{faster:.2f}", verdict])
    head = ["way", "time", "times faster than plain", "bar"]
    return f"\n## {leg.text()}\n\n{report.table(head, rows)}{auto_text(leg, seconds)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--links", default="", help="e.g. '1 Gbit/s'; all by default")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    chosen = parser.parse_args()
    facts = report.machine()
    print(report.machine_text(facts))
    record: dict[str, object] = {"machine": facts, "rounds": chosen.rounds}
    legs = []
    for leg in LEGS:
        if chosen.links and leg.link not in chosen.links.split(","):
            continue
        limit = next((limit for limit in LIMITS if limit.name == leg.link), None)
        try:
            with hosts_on_a_switch(leg.hosts) as switch:
                if limit:
                    switch.limit(limit)
                seconds = measure(switch, leg, chosen.ways.split(","), chosen.rounds)
        except Unable as error:
            print(f"compression: skipped: {error}")
            return
        print(table(leg, seconds), flush=True)
        legs.append({**asdict(leg), "shaping": limit.text() if limit else "", "seconds": seconds})
    record["legs"] = legs
    print(f"\nwrote {report.write_json('compression.json', record, chosen.out)}")


if __name__ == "__main__":
    main()
