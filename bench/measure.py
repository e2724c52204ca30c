"""Alternating rounds: who is asked what, and when.

Owns the choice of iterations and the order of rounds. Both drivers hand it entries (a contestant, perhaps in one of
several forms) and a size; it returns a `Cell` per entry. Never starts or ends a process, except that a contestant which
hangs or dies in a round is ended by `Contestant.ask` and is then out for all later sizes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contestants import TICKS_PER_S, Contestant, Unable

MOST_ITERATIONS = 50_000
LEAST_ITERATIONS = 3
MOST_WARMUP = 200
IDLE_SETTLE_S = 0.5
IDLE_SAMPLE_S = 1.0


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    rounds: int = 5
    round_s: float = 0.2
    hang_limit_s: float = 60.0


@dataclass(frozen=True)
class Entry:
    """A column of the table: a contestant, in one form."""

    label: str
    contestant: Contestant
    form: str = ""


@dataclass
class Cell:
    """What one entry did at one size: the answers of its rounds, or the problem that kept it from answering."""

    label: str
    bytes: int
    answers: list[dict[str, float]] = field(default_factory=list)
    problem: str = ""

    @property
    def times_us(self) -> list[float]:
        """The median of each round."""
        return [answer["median_us"] for answer in self.answers]

    @property
    def median_us(self) -> float:
        return statistics.median(self.times_us)

    @property
    def mean_us(self) -> float:
        """Median over rounds of the mean of a whole loop; far above `median_us` when a few iterations are very slow."""
        return statistics.median(answer.get("mean_us", answer["median_us"]) for answer in self.answers)


def ask(entry: Entry, size: int, iterations: int, warmup: int, plan: Plan) -> dict[str, float]:
    return entry.contestant.ask(f"allreduce {size} {iterations} {warmup} {entry.form}".strip(), plan.hang_limit_s)


def iterations_for(entry: Entry, size: int, plan: Plan) -> int:
    """How many fill a round: two short trials, the second warm, each a fraction of a round."""
    iterations = LEAST_ITERATIONS
    for share in (0.1, 1.0):
        trial = ask(entry, size, iterations, 1, plan)
        iterations = int(share * plan.round_s * 1e6 / max(trial["median_us"], 0.1))
        iterations = min(MOST_ITERATIONS, max(LEAST_ITERATIONS, iterations))
    return iterations


def measure(entries: Sequence[Entry], size: int, plan: Plan) -> list[Cell]:
    """All rounds of one size: every entry in turn, then again; each round begins with another entry."""
    cells = {entry.label: Cell(entry.label, size) for entry in entries}
    counts: dict[str, int] = {}
    for entry in entries:
        try:
            counts[entry.label] = iterations_for(entry, size, plan)
        except Unable as error:
            cells[entry.label].problem = str(error)
    for number in range(plan.rounds):
        first = number % len(entries)
        for entry in [*entries[first:], *entries[:first]]:
            cell = cells[entry.label]
            if cell.problem:
                continue
            count = counts[entry.label]
            try:
                cell.answers.append(ask(entry, size, count, min(MOST_WARMUP, max(2, count // 10)), plan))
            except Unable as error:
                cell.problem = str(error)
    return list(cells.values())


def sweep(
    entries: Sequence[Entry],
    sizes: Sequence[int],
    plan: Plan,
    problems: dict[str, str],
    progress: Callable[[int], None],
) -> dict[int, dict[str, Cell]]:
    """All sizes: size -> label -> cell. The first problem of each label is noted."""
    found: dict[int, dict[str, Cell]] = {}
    for size in sizes if entries else ():
        progress(size)
        found[size] = {cell.label: cell for cell in measure(entries, size, plan)}
        for cell in found[size].values():
            if cell.problem:
                problems.setdefault(cell.label, f"at {size} bytes: {cell.problem}")
    return found


def idle_load(contestants: Sequence[Contestant]) -> dict[str, float]:
    """Cores used by each contestant while nobody asks it anything, and by `others`: all else that runs here.

    Both should be next to nothing: the one would take time from its rivals, the other from everybody.
    """
    running = [contestant for contestant in contestants if contestant.status == "running"]
    time.sleep(IDLE_SETTLE_S)
    before = {contestant.name: contestant.cpu_seconds() for contestant in running}
    busy_before = busy_seconds()
    time.sleep(IDLE_SAMPLE_S)
    busy = (busy_seconds() - busy_before) / IDLE_SAMPLE_S
    loads = {c.name: (c.cpu_seconds() - before[c.name]) / IDLE_SAMPLE_S for c in running}
    return {**loads, "others": max(0.0, busy - sum(loads.values()))}


def busy_seconds() -> float:
    """CPU time all processes of the machine have used since it started, and time the hypervisor took away."""
    user, nice, system, _idle, _wait, irq, softirq, steal = (
        int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S
