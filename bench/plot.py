"""The picture: time over size, both logarithmic, a panel per number of ranks.

Owns colours, markers and labels (Okabe and Ito's palette, which colour-blind readers can tell apart; every line has a
marker or dash of its own as well). Reads cells, writes SVG and PNG.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

import report
from measure import Cell

STYLES: dict[str, dict[str, Any]] = {
    "gloo": {"color": "#0072B2", "marker": "s"},
    "openmpi": {"color": "#009E73", "marker": "^"},
    "mpich": {"color": "#CC79A7", "marker": "v"},
    "corro": {"color": "#D55E00", "marker": "o", "linewidth": 2.4, "zorder": 5},
    "corro zero-copy": {"color": "#E69F00", "marker": "D", "linewidth": 2.4, "zorder": 4},
    "memcpy": {"color": "#555555", "linestyle": "--", "linewidth": 1.2},
    "memcpy x2": {"color": "#999999", "linestyle": ":", "linewidth": 1.4},
}
# The sizes named on the axis when there are too many to name all.
TICKS = {4, 64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20}
NAMES = {
    "gloo": "Gloo",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "corro": "Corro (private memory)",
    "corro zero-copy": "Corro (shared buffer)",
    "memcpy": "memory copy, 1 process",
    "memcpy x2": "memory copy, 2 at once",
}


def collectives(panels: dict[int, dict[int, dict[str, Cell]]], facts: dict[str, object], folder: Path) -> list[Path]:
    """Draws all panels side by side on one time axis; returns the files."""
    drawn = {ranks: sizes for ranks, sizes in panels.items() if sizes}
    if not drawn:
        return []
    plt.rcParams.update({"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "corro"})
    width = 1.4 + 4.0 * len(drawn)
    figure, axes = plt.subplots(1, len(drawn), figsize=(width, 5.4), sharey=True, squeeze=False, layout="constrained")
    for axis, (ranks, sizes) in zip(axes[0], drawn.items()):
        panel(axis, ranks, sizes, int(str(facts["cores"])))
    axes[0][0].set_ylabel("time of one allreduce (lower is better)")
    handles = {line.get_label(): line for axis in axes[0] for line in axis.get_lines()}
    ordered = [handles[name] for name in NAMES.values() if name in handles]
    figure.legend(handles=ordered, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"Sum allreduce of float32 on one host: {facts['cpu']}, {facts['cores']} cores", fontsize=11)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "collectives.svg", folder / "collectives.png"]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return paths


def panel(axis: Axes, ranks: int, sizes: dict[int, dict[str, Cell]], cores: int) -> None:
    for label, style in STYLES.items():
        drawn = {size: cells[label] for size, cells in sizes.items() if label in cells and cells[label].answers}
        if drawn:
            times = [cell.median_us for cell in drawn.values()]
            axis.plot(list(drawn), times, label=NAMES[label], markersize=4.5, **{"linewidth": 1.5, **style})
    crowd = ", more than cores" if ranks > cores else ""
    axis.set_title(f"{ranks} ranks{crowd}", fontsize=10)
    axis.set_xlabel("size of the buffer on each rank")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ticks = [size for size in sizes if len(sizes) <= 6 or size in TICKS]
    axis.set_xticks(ticks, [report.size_text(size) for size in ticks], rotation=35, ha="right")
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda us, _position: report.time_text(us))
    axis.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
