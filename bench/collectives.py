#!/usr/bin/env python3
"""Allreduce on one host: Corro beside Gloo, Open MPI, MPICH and the machine's own memory copy, in one run.

The driver of the one-host benchmark: parses options, starts the contestants of each number of ranks, hands them to
measure.py, and gives what comes back to report.py, bars.py and plot.py. Run it with .venv-bench/bin/python.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import bars
import contestants
import options
import report
from measure import Cell, Entry, Plan, idle_load, sweep

FULL = [4, 64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
QUICK = [4, 16 << 10, 1 << 20, 16 << 20]
CORRO_FORMS = {"corro": "private", "corro zero-copy": "zero_copy"}
MEMCPY = {"memcpy": 1, "memcpy x2": 2}


@dataclass
class Panel:
    """All that was measured with one number of ranks."""

    ranks: int
    versions: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)
    cells: dict[int, dict[str, Cell]] = field(default_factory=dict)

    def peers(self, size: int) -> list[Cell]:
        return [cell for label, cell in self.cells[size].items() if label in contestants.PEERS]

    def corros(self, size: int) -> list[Cell]:
        return [cell for label, cell in self.cells[size].items() if label in CORRO_FORMS]


def parse() -> argparse.Namespace:
    parser = options.parser(__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="", help="numbers of ranks, e.g. 2,4,8 (the default)")
    return parser.parse_args()


def entries_for(ranks: int, chosen: argparse.Namespace, stack: ExitStack, problems: dict[str, str]) -> list[Entry]:
    """Starts all contestants of one panel. The memory copy does not depend on the ranks: it runs in each panel."""
    entries = []
    for name, make in contestants.PEERS.items():
        if options.wanted(chosen, name) and (peer := contestants.start(stack, name, make, ranks, problems)):
            entries.append(Entry(name, peer))
    make_corro = partial(contestants.corro, binary=chosen.corro)
    if options.wanted(chosen, "corro") and (ours := contestants.start(stack, "corro", make_corro, ranks, problems)):
        entries += [Entry(label, ours, form) for label, form in CORRO_FORMS.items()]
    for label, copies in MEMCPY.items():
        if not options.wanted(chosen, "memcpy"):
            continue
        if copier := contestants.start(stack, label, contestants.memcpy, copies, problems):
            entries.append(Entry(label, copier))
    return entries


def run_panel(ranks: int, sizes: Sequence[int], plan: Plan, chosen: argparse.Namespace) -> Panel:
    panel = Panel(ranks)
    with ExitStack() as stack:
        entries = entries_for(ranks, chosen, stack, panel.problems)
        running = list(dict.fromkeys(entry.contestant for entry in entries))
        panel.versions = {contestant.name: contestant.version for contestant in running}
        panel.idle = idle_load(running)
        print(report.idle_text(panel.idle), end="", file=sys.stderr)
        panel.cells = sweep(entries, sizes, plan, panel.problems, report.progress(f"{ranks} ranks"))
    print("\n" + report.problems_text(panel.problems), end="", file=sys.stderr)
    return panel


def ratios(panel: Panel, size: int) -> list[report.Ratio]:
    """Each form of Corro against each peer."""
    pairs = ((ours, theirs) for ours in panel.corros(size) for theirs in panel.peers(size))
    return [found for ours, theirs in pairs if (found := report.ratio(ours, theirs))]


def times_table(panel: Panel) -> str:
    known = [*contestants.PEERS, *CORRO_FORMS, *MEMCPY]
    labels = [label for label in known if any(label in cells for cells in panel.cells.values())]
    rows = [
        [report.size_text(size), *(report.cell_text(cells.get(label)) for label in labels)]
        for size, cells in panel.cells.items()
    ]
    return report.table(["size", *labels], rows)


def ratios_table(panel: Panel) -> str:
    """Per form of Corro: against the best peer of each size, then against each peer."""
    labels = [label for label in CORRO_FORMS if any(label in cells for cells in panel.cells.values())]
    rows = []
    for size in panel.cells:
        found = {(r.ours, r.theirs): r for r in ratios(panel, size)}
        top = report.best(panel.peers(size))
        for label in labels:
            against_best = found.get((label, top.label)) if top else None
            each = (found.get((label, peer)) for peer in contestants.PEERS)
            best_text = f"{against_best.text()} {against_best.theirs}" if against_best else "-"
            rows.append([report.size_text(size), label, best_text, *(r.text() if r else "-" for r in each)])
    return report.table(["size", "form", "best peer", *contestants.PEERS], rows)


def print_panel(panel: Panel, plan: Plan) -> None:
    print(f"\n## {panel.ranks} ranks: time of one allreduce (median of {plan.rounds} rounds)\n\n{times_table(panel)}")
    if any(panel.corros(size) for size in panel.cells):
        print(f"\n## {panel.ranks} ranks: times faster than the peer, median (min-max) of rounds\n")
        print(ratios_table(panel))


def panel_json(panel: Panel) -> dict[str, object]:
    return {
        "ranks": panel.ranks,
        "versions": panel.versions,
        "problems": panel.problems,
        "idle_cores": panel.idle,
        "cells": [report.cell_json(cell) for cells in panel.cells.values() for cell in cells.values()],
        "ratios": [found.json() for size in panel.cells for found in ratios(panel, size)],
    }


def main() -> None:
    chosen = parse()
    sizes = options.sizes(chosen, FULL, QUICK)
    ranks = [int(word) for word in chosen.ranks.split(",")] if chosen.ranks else [2, 4] if chosen.quick else [2, 4, 8]
    plan = options.plan(chosen)
    facts = report.machine()
    print(report.machine_text(facts))
    panels = [run_panel(count, sizes, plan, chosen) for count in ranks]
    for panel in panels:
        print_panel(panel, plan)
    verdicts = bars.one_host({panel.ranks: panel.cells for panel in panels}, report.usable_cores())
    print(bars.text(verdicts))
    data = {"machine": facts, "plan": vars(plan), "panels": [panel_json(panel) for panel in panels]}
    path = report.write_json("collectives.json", {**data, "bars": bars.json(verdicts)}, chosen.out)
    print(f"\nwrote {path}")
    draw(panels, facts, chosen.out)


def draw(panels: list[Panel], facts: dict[str, object], folder: Path) -> None:
    try:
        import plot
    except ImportError as error:
        print(f"no plot: {error}; run bench/setup", file=sys.stderr)
        return
    for path in plot.collectives({panel.ranks: panel.cells for panel in panels}, facts, folder):
        print(f"wrote {path}")


if __name__ == "__main__":
    options.run_driver(main)
