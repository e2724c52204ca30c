"""The bars Corro has set itself, judged from one run's figures.

Owns the list of bars and the words for "met" and "missed". Pure: takes cells, returns verdicts. A bar whose figures
were not measured is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import report
from measure import Cell

Cells = dict[int, dict[str, Cell]]  # size -> label -> cell
MPI = ("openmpi", "mpich")
PEERS = ("gloo", *MPI)
K, M = 1 << 10, 1 << 20
# "No slower" allows for this much noise.
NOISE = 0.01


@dataclass(frozen=True)
class Verdict:
    what: str
    need: float
    got: float
    detail: str

    @property
    def met(self) -> bool:
        return self.got >= self.need


def against(cells: dict[str, Cell], ours: str, theirs: Sequence[str], need: float, what: str) -> list[Verdict]:
    """Corro against the fastest of `theirs`."""
    top = report.best([cells[label] for label in theirs if label in cells])
    found = report.ratio(cells[ours], top) if top and ours in cells else None
    return [Verdict(what, need, found.median, f"{found.text()} x {found.theirs}")] if found else []


def one_host(panels: dict[int, Cells], cores: int) -> list[Verdict]:
    verdicts = []
    for ranks, sizes in panels.items():
        for size, cells in sizes.items():
            where = f"{ranks} ranks, {report.size_text(size)}"
            if ranks > cores:
                verdicts += crowded(cells, size, where)
            elif ranks == 2:
                verdicts += roomy(cells, size, where)
    return verdicts


def roomy(cells: dict[str, Cell], size: int, where: str) -> list[Verdict]:
    """2 ranks with a core each."""
    copy, zero = "corro", "corro zero-copy"
    rules: dict[int, list[tuple[str, Sequence[str], float, str]]] = {
        4: [(copy, MPI, 0.5, "against the better MPI"), (copy, ("gloo",), 20, "against Gloo")],
        16 * M: [(copy, PEERS, 1, "private, best peer"), (zero, PEERS, 2.5, "zero-copy, best peer")],
        64 * M: [(copy, PEERS, 1.5, "private, best peer"), (zero, PEERS, 4, "zero-copy, best peer")],
    }
    found = [against(cells, ours, theirs, need, f"{where}, {what}") for ours, theirs, need, what in rules.get(size, [])]
    return [verdict for verdicts in found for verdict in verdicts]


def crowded(cells: dict[str, Cell], size: int, where: str) -> list[Verdict]:
    """More ranks than cores."""
    if size >= 16 * K:
        return against(cells, "corro", PEERS, 1, f"{where}, best peer")
    return against(cells, "corro", MPI, 0.5, f"{where}, better MPI")


def two_hosts(links: dict[str, Cells], rates: dict[str, float]) -> list[Verdict]:
    """`links`: name of the link -> cells; `rates`: its limit in bit/s, where it has one."""
    verdicts = []
    no_slower = 1 - NOISE
    for link, sizes in links.items():
        large, middle = sizes.get(64 * M, {}), sizes.get(M, {})
        where = f"{link}, 64 MiB"
        if link == "1 Gbit/s":
            verdicts += against(large, "corro", ("gloo",), no_slower, f"{where}, Gloo")
        elif link == "10 Gbit/s":
            verdicts += against(middle, "corro", ("gloo",), 2, f"{link}, 1 MiB, Gloo")
            verdicts += share(large, rates[link], where)
        else:
            verdicts += against(large, "corro", ("gloo",), 1.5, f"{where}, Gloo")
        verdicts += against(large, "corro 2+2", ("corro",), no_slower, f"{where}, 2 ranks a host against 1")
    return verdicts


def share(cells: dict[str, Cell], rate: float, where: str) -> list[Verdict]:
    cell = cells.get("corro")
    if not cell or not cell.answers:
        return []
    got = cell.bytes * 8e6 / cell.median_us / rate
    return [Verdict(f"{where}, share of the link", 0.95, got, f"{got:.1%}")]


def text(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return ""
    rows = [[v.what, f"{v.need:g}", v.detail, "met" if v.met else "MISSED"] for v in verdicts]
    return "\n## Bars\n\n" + report.table(["bar", "at least", "measured", ""], rows)


def json(verdicts: Sequence[Verdict]) -> list[dict[str, object]]:
    return [{**vars(verdict), "met": verdict.met} for verdict in verdicts]
