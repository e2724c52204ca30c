#!/usr/bin/env python3
"""Loss against bytes: `examples/torch/fewer_bytes.py` with each compression on two ranks, mean of several seeds, as a table and a picture.

Ranks are on one host and compress what they tell each other all the same (CORRO_COMPRESS_INSIDE). Run it with a Python that has Corro,
torch, scikit-learn and matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import report

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "torch" / "fewer_bytes.py"
# What the bar is about, and what else a reader may ask for. The last: within so much of full precision.
BAR = 1.02
WAYS: dict[str, list[str]] = {
    "none": [],
    "bf16": ["--compression", "bf16"],
    "int8": ["--compression", "int8"],
    "int4": ["--compression", "int4"],
    "onebit": ["--compression", "onebit"],
    "powersgd rank=4": ["--compression", "powersgd rank=4"],
    "topk 1 %": ["--compression", "topk density=0.01"],
    "1-bit Adam": ["--method", "onebit-adam"],
    "DiLoCo, every 20": ["--method", "diloco", "--every", "20", "--fragments", "2", "--compression", "int8"],
}
MUST = {"int8", "powersgd rank=4", "topk 1 %", "1-bit Adam"}


def run(options: list[str]) -> dict[str, Any]:
    corro = Path(sys.executable).with_name("corro")
    argv = [str(corro), "run", "-np", "2", "--no-prefix", sys.executable, str(EXAMPLE), "--json", *options]
    env = {**os.environ, "CORRO_COMPRESS_INSIDE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=900, check=True)
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def measure(task: str, steps: int, seeds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, options in WAYS.items():
        runs = [run(["--task", task, "--steps", str(steps), "--seed", str(seed), *options]) for seed in range(seeds)]
        ratio = runs[0]["plain_bytes"] / runs[0]["sent_bytes"] if runs[0]["sent_bytes"] else 1.0
        rows.append({"way": name, "loss": statistics.mean(one["loss"] for one in runs), "ratio": ratio})
        print(f"{task} {name}: loss {rows[-1]['loss']:.4f}, bytes 1/{ratio:.1f}", file=sys.stderr)
    return rows


def table(task: str, rows: list[dict[str, Any]]) -> str:
    plain = rows[0]["loss"]
    lines = []
    for row in rows:
        share = row["loss"] / plain
        verdict = "-" if row["way"] not in MUST else "met" if share <= BAR else "MISSED"
        lines.append([row["way"], f"{row['loss']:.4f}", f"{100 * (share - 1):+.1f} %", f"1/{row['ratio']:.1f}", verdict])
    head = ["way", "test loss", "against none", "bytes of what was compressed", "bar: within 2 %"]
    return f"\n## {task}\n\n{report.table(head, lines)}"


def picture(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(5.2 * len(found), 4), squeeze=False)
    for panel, (task, rows) in zip(panels[0], found.items(), strict=True):
        panel.axhline(rows[0]["loss"], color="#999999", linestyle=":", linewidth=1)
        for row in rows:
            panel.plot(row["ratio"], row["loss"], "o", color="#D55E00")
            panel.annotate(row["way"], (row["ratio"], row["loss"]), xytext=(4, 4), textcoords="offset points", fontsize=8)
        panel.set_xscale("log")
        panel.set_xlabel("times fewer bytes")
        panel.set_ylabel("test loss")
        panel.set_title(task)
        panel.margins(x=0.2, y=0.2)
    figure.tight_layout()
    figure.savefig(path)
    figure.savefig(path.with_suffix(".png"), dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", default="digits:600,sonnets:400", help="task:steps, ...")
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    chosen = parser.parse_args()
    found = {}
    for task in chosen.tasks.split(","):
        name, steps = task.split(":")
        found[name] = measure(name, int(steps), chosen.seeds)
    print(report.machine_text(report.machine()))
    for name, rows in found.items():
        print(table(name, rows))
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "accuracy.json").write_text(json.dumps(found, indent=1))
    picture(found, chosen.out / "accuracy.svg")


if __name__ == "__main__":
    main()
