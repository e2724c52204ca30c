#!/usr/bin/env python3
"""Allreduce between two hosts (network namespaces): Corro beside Gloo over links of 1 and 10 Gbit/s and no limit.

The driver of the two-host benchmark: makes the link (link.py), starts Gloo and Corro with one and with two ranks a host
and Corro with TLS, sweeps the sizes over each limit in alternating rounds, prints and writes. Needs root and iproute2;
says so and ends well where they are missing. Run it with .venv-bench/bin/python.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import bars
import contestants
import options
import report
from contestants import Launch, Unable
from link import ADDRESSES, INTERFACE, LIMITS, Limit, Link, joined_hosts, tcp_ceiling
from measure import Cell, Entry, Plan, idle_load, sweep

SIZES = [4, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
QUICK = [4, 1 << 20, 16 << 20]
# Below this, latency is all there is.
RATE_FROM = 16 << 10
# Which pairs are worth a ratio: (ours, theirs).
PAIRS = (
    ("corro", "gloo"),
    ("corro tls", "corro"),
    ("corro tls", "gloo"),
    ("corro 2+2", "gloo 2+2"),
    ("corro 2+2", "corro"),
    ("gloo 2+2", "gloo"),
)


@dataclass
class Leg:
    """What was measured over the link under one limit."""

    limit: Limit
    ceiling_one_way: float
    ceiling_both_ways: float
    cells: dict[int, dict[str, Cell]]


def host_of(rank: int, size: int) -> str:
    return "a" if rank < size // 2 else "b"


def gloo(link: Link, size: int, scratch: Path) -> list[Launch]:
    env = {"GLOO_SOCKET_IFNAME": INTERFACE}
    ranks = contestants.python_ranks("gloo_rounds.py", size, contestants.gloo_arguments(scratch), env)
    return [Launch(link.command(host_of(rank, size), launch.argv), launch.env) for rank, launch in enumerate(ranks)]


def corro(link: Link, size: int, binary: Path, port: int, tls: bool) -> list[Launch]:
    ends = [host_of(rank, size) for rank in range(size)]
    names, rendezvous = [f"corro-{end}" for end in ends], f"{ADDRESSES['a']}:{port}"
    ranks = contestants.corro_ranks(names, rendezvous, binary, ["--tls"] if tls else [])
    return [Launch(link.command(end, rank.argv), rank.env) for end, rank in zip(ends, ranks, strict=True)]


def entries_for(link: Link, chosen: argparse.Namespace, stack: ExitStack, problems: dict[str, str]) -> list[Entry]:
    makers: dict[str, tuple[int, contestants.Maker]] = {
        "gloo": (2, lambda size, scratch: gloo(link, size, scratch)),
        "gloo 2+2": (4, lambda size, scratch: gloo(link, size, scratch)),
        "corro": (2, lambda size, _scratch: corro(link, size, chosen.corro, 47101, tls=False)),
        "corro tls": (2, lambda size, _scratch: corro(link, size, chosen.corro, 47102, tls=True)),
        "corro 2+2": (4, lambda size, _scratch: corro(link, size, chosen.corro, 47103, tls=False)),
    }
    entries = []
    for label, (size, make) in makers.items():
        if not options.wanted(chosen, label):
            continue
        if contestant := contestants.start(stack, label, make, size, problems):
            entries.append(Entry(label, contestant, "private" if label.startswith("corro") else ""))
    return entries


def rate(cell: Cell) -> float:
    """Bit/s each way, counting the buffer once: what two ranks must at least send each other."""
    return cell.bytes * 8e6 / cell.median_us


def ratios(cells: dict[str, Cell]) -> list[report.Ratio]:
    pairs = ((cells[ours], cells[theirs]) for ours, theirs in PAIRS if ours in cells and theirs in cells)
    return [found for ours, theirs in pairs if (found := report.ratio(ours, theirs))]


def leg_table(leg: Leg) -> str:
    rows = []
    for size, cells in leg.cells.items():
        found = ratios(cells)
        for label, cell in cells.items():
            mine = ", ".join(f"{one.text()} {one.theirs}" for one in found if one.ours == label)
            rows.append([report.size_text(size), label, report.cell_text(cell), *rate_texts(leg, cell), mine or "-"])
    head = ["size", "contestant", "time", "Gbit/s", "of the link", "of plain TCP", "times faster than"]
    return report.table(head, rows)


def rate_texts(leg: Leg, cell: Cell) -> list[str]:
    if not cell.answers or cell.bytes < RATE_FROM:
        return ["-", "-", "-"]
    bits = rate(cell)
    share = f"{bits / leg.limit.bits_per_s:.1%}" if leg.limit.bits_per_s else "-"
    return [f"{bits / 1e9:.3g}", share, f"{bits / leg.ceiling_both_ways:.1%}"]


def leg_text(leg: Leg, plan: Plan) -> str:
    one, both = leg.ceiling_one_way / 1e9, leg.ceiling_both_ways / 1e9
    return (
        f"\n## Two hosts, {leg.limit.name} (median of {plan.rounds} rounds)\n\n{leg.limit.text()}; "
        f"one plain TCP connection carries {one:.3g} Gbit/s one way, {both:.3g} Gbit/s each way when both send"
        f"\n\n{leg_table(leg)}"
    )


def leg_json(leg: Leg) -> dict[str, object]:
    return {
        "link": leg.limit.name,
        "shaping": leg.limit.text(),
        "limit_bits_per_s": leg.limit.bits_per_s,
        "tcp_one_way_bits_per_s": leg.ceiling_one_way,
        "tcp_both_ways_bits_per_s": leg.ceiling_both_ways,
        "cells": [
            {**report.cell_json(cell), "bits_per_s": rate(cell) if cell.answers else None}
            for cells in leg.cells.values()
            for cell in cells.values()
        ],
        "ratios": [found.json() for cells in leg.cells.values() for found in ratios(cells)],
    }


def parse() -> argparse.Namespace:
    parser = options.parser(__doc__.splitlines()[0])
    parser.add_argument("--links", default="", help="e.g. '1 Gbit/s,no limit'; all by default")
    return parser.parse_args()


def run(link: Link, chosen: argparse.Namespace, sizes: list[int], plan: Plan, record: dict[str, object]) -> list[Leg]:
    """All legs with one set of contestants, which stay connected while the limit changes."""
    legs: list[Leg] = []
    problems: dict[str, str] = {}
    with ExitStack() as stack:
        entries = entries_for(link, chosen, stack, problems)
        running = [entry.contestant for entry in entries]
        record["versions"] = {contestant.name: contestant.version for contestant in running}
        loads = idle_load(running)
        record["idle_cores"] = loads
        print(report.idle_text(loads), end="", file=sys.stderr)
        for limit in LIMITS:
            if chosen.links and limit.name not in chosen.links.split(","):
                continue
            link.limit(limit)
            ceilings = tcp_ceiling(link, both_ways=False), tcp_ceiling(link, both_ways=True)
            legs.append(Leg(limit, *ceilings, sweep(entries, sizes, plan, problems, report.progress(limit.name))))
    record["problems"] = problems
    print("\n" + report.problems_text(problems), end="", file=sys.stderr)
    return legs


def main() -> None:
    chosen = parse()
    sizes = options.sizes(chosen, SIZES, QUICK)
    plan = options.plan(chosen)
    facts = report.machine()
    print(report.machine_text(facts))
    record: dict[str, object] = {"machine": facts, "plan": vars(plan)}
    try:
        with joined_hosts() as link:
            legs = run(link, chosen, sizes, plan, record)
    except Unable as error:
        print(f"two hosts: skipped: {error}")
        return
    for leg in legs:
        print(leg_text(leg, plan))
    verdicts = bars.two_hosts(
        {leg.limit.name: leg.cells for leg in legs}, {leg.limit.name: leg.limit.bits_per_s for leg in legs}
    )
    print(bars.text(verdicts))
    record.update(legs=[leg_json(leg) for leg in legs], bars=bars.json(verdicts))
    print(f"\nwrote {report.write_json('two_hosts.json', record, chosen.out)}")


if __name__ == "__main__":
    options.run_driver(main)
