#!/usr/bin/env python3
"""AlexNet by allreduce and by parameter servers: `examples/torch/alexnet.py` in its modes on two ranks, and a picture of them.

Prints the median time of an iteration and the last losses of each, and draws both over the iterations. Ranks, servers and all their
traffic share one host here; servers are in the ranks. Run it with a Python that has Corro, torch and matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import report

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "torch" / "alexnet.py"
MODES = {
    "allreduce": ["--mode", "allreduce"],
    "servers, in rounds": ["--mode", "ps"],
    "servers, staleness 3": ["--mode", "ps", "--staleness", "3"],
}
# Okabe and Ito's colours, as in the other pictures.
LOOKS = {
    "allreduce": {"color": "#D55E00", "linestyle": "-"},
    "servers, in rounds": {"color": "#0072B2", "linestyle": "--"},
    "servers, staleness 3": {"color": "#009E73", "linestyle": ":"},
}
LINE = re.compile(r"iteration +\d+ +([\d.]+) ms +loss ([\d.]+)")
# Losses of single batches are noisy: a point is the mean of so many.
SMOOTH = 5


def run(options: list[str], iterations: int, image_size: int) -> dict[str, list[float]]:
    corro = Path(sys.executable).with_name("corro")
    size = ["--iterations", str(iterations), "--image-size", str(image_size), "--warmup", "0"]
    argv = [str(corro), "run", "-np", "2", "--no-prefix", sys.executable, str(EXAMPLE), *size, *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=900, check=True)
    found = [(float(ms), float(loss)) for ms, loss in LINE.findall(done.stdout)]
    assert len(found) == iterations, done.stdout
    return {"ms": [ms for ms, _ in found], "loss": [loss for _, loss in found]}


def smooth(values: list[float]) -> list[float]:
    return [statistics.mean(values[max(0, i + 1 - SMOOTH) : i + 1]) for i in range(len(values))]


def picture(found: dict[str, dict[str, list[float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    for mode, values in found.items():
        at = range(1, len(values["ms"]) + 1)
        left.plot(at, values["ms"], label=mode, **LOOKS[mode])
        right.plot(at, smooth(values["loss"]), label=mode, **LOOKS[mode])
    for panel, title in ((left, "milliseconds of an iteration"), (right, f"loss (mean of {SMOOTH})")):
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("iteration")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    left.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results", help="a folder")
    chosen = parser.parse_args()
    facts: dict[str, Any] = report.machine()
    print(report.machine_text(facts))
    found = {mode: run(options, chosen.iterations, chosen.image_size) for mode, options in MODES.items()}
    rows = []
    for mode, values in found.items():
        last = statistics.mean(values["loss"][-10:])
        rows.append([mode, f"{statistics.median(values['ms'][3:]):.0f}", f"{last:.3f}"])
    print(report.table(["mode", "median ms of an iteration", "mean loss of the last ten"], rows))
    chosen.out.mkdir(exist_ok=True)
    (chosen.out / "alexnet_modes.json").write_text(json.dumps({"machine": facts, "found": found}) + "\n")
    for name in ("alexnet_modes.svg", "alexnet_modes.png"):
        picture(found, chosen.out / name)


if __name__ == "__main__":
    main()
