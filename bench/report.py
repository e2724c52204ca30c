"""Words, tables and files: what both drivers print and write.

Owns the description of the machine, the formatting of sizes, times and ratios, and the JSON. Never measures.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from measure import Cell

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Ratio:
    """How many times faster `ours` is than `theirs`, round by round; the two of a round ran one after the other."""

    ours: str
    theirs: str
    bytes: int
    per_round: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.per_round)

    def text(self) -> str:
        return f"{self.median:.2f} ({min(self.per_round):.2f}-{max(self.per_round):.2f})"

    def json(self) -> dict[str, object]:
        return {**asdict(self), "median": self.median, "min": min(self.per_round), "max": max(self.per_round)}


def ratio(ours: Cell, theirs: Cell) -> Ratio | None:
    """None where one of them has no answers."""
    pairs = list(zip(ours.times_us, theirs.times_us, strict=False))
    return Ratio(ours.label, theirs.label, ours.bytes, [b / a for a, b in pairs]) if pairs else None


def best(cells: Sequence[Cell]) -> Cell | None:
    """The fastest by its median over the rounds."""
    return min((cell for cell in cells if cell.answers), key=lambda cell: cell.median_us, default=None)


def cell_json(cell: Cell) -> dict[str, object]:
    data: dict[str, object] = {"label": cell.label, "bytes": cell.bytes, "problem": cell.problem}
    data["rounds"] = cell.answers
    if cell.answers:
        data["median_us"] = cell.median_us
        data["mean_us"] = cell.mean_us
    return data


# --- words ------------------------------------------------------------------------------------------------------------


def size_text(size: int) -> str:
    for unit, word in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {word}"
    return f"{size} B"


def parse_size(text: str) -> int:
    """`4`, `64k`, `1m`; binary units."""
    units = {"k": 1 << 10, "m": 1 << 20}
    lowered = text.strip().lower()
    return int(lowered[:-1]) * units[lowered[-1]] if lowered[-1] in units else int(lowered)


def time_text(us: float) -> str:
    if us >= 1e6:
        return f"{us / 1e6:.3g} s"
    if us >= 1e3:
        return f"{us / 1e3:.3g} ms"
    return f"{us:.3g} us"


def cell_text(cell: Cell | None) -> str:
    """A time; `*` marks a mean more than twice the median; without answers, the first word of the problem."""
    if cell is None:
        return "-"
    if not cell.answers:
        return cell.problem.split(":")[0].split(" ")[0] or "-"
    return time_text(cell.median_us) + ("*" if cell.mean_us > 2 * cell.median_us else "")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with columns padded, so that it reads well in a terminal too."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [head, ["-" * (width - 1) + ":" for width in widths], *rows]
    return "\n".join("| " + " | ".join(text.rjust(width) for text, width in zip(line, widths)) + " |" for line in lines)


# --- the machine ------------------------------------------------------------------------------------------------------


def first_match(path: str, key: str) -> str:
    """The value of the first `key : value` line of a /proc file."""
    try:
        for line in Path(path).read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    except OSError:
        pass
    return "unknown"


def read_word(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "none"


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def machine() -> dict[str, object]:
    return {
        "cpu": first_match("/proc/cpuinfo", "model name"),
        "cores": usable_cores(),
        "memory": first_match("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "governor": read_word("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "huge_pages": read_word("/sys/kernel/mm/transparent_hugepage/enabled"),
        "hypervisor": "hypervisor" in first_match("/proc/cpuinfo", "flags").split(),
        "load_average_at_start": os.getloadavg(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def machine_text(facts: dict[str, object]) -> str:
    load = facts["load_average_at_start"]
    assert isinstance(load, tuple)
    virtual = ", virtual machine" if facts["hypervisor"] else ""
    text = (
        f"machine: {facts['cpu']}, {facts['cores']} usable cores{virtual}, {facts['memory']}, Linux {facts['kernel']}, "
        f"governor {facts['governor']}, huge pages {facts['huge_pages']}, load average {load[0]:.2f} at start"
    )
    if load[0] > 0.3:
        text += "\nnote: the machine was not idle at the start; trust ratios more than times, and neither much"
    return text


def progress(where: str) -> Callable[[int], None]:
    """Says on stderr, on one line, which size is being measured."""
    return lambda size: print(f"\r{where}, {size_text(size):>8} ", end="", file=sys.stderr, flush=True)


def problems_text(problems: dict[str, str]) -> str:
    return "".join(f"problem: {label}: {problem}\n" for label, problem in problems.items())


def idle_text(loads: dict[str, float]) -> str:
    """Empty unless a contestant burns CPU while it waits, or something else on the machine does."""
    lines = [
        f"warning: {name} uses {load:.0%} of a core while idle\n"
        for name, load in loads.items()
        if load > 0.03 and name != "others"
    ]
    if loads.get("others", 0.0) > 0.1:
        lines.append(f"warning: other programs use {loads['others']:.1f} cores: do not trust the figures\n")
    return "".join(lines)


def write_json(name: str, data: dict[str, object], folder: Path = RESULTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path
