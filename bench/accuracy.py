#!/usr/bin/env python3
"""Loss against bytes: `examples/torch/fewer_bytes.py` with each compression on two ranks, mean of several seeds, as a table and a picture.

Ranks are on one host and compress what they tell each other all the same (CORRO_COMPRESS_INSIDE). Bytes are those of the whole
training, with the steps that begin it in full precision. Run it with a Python that has Corro, torch and scikit-learn;
`--draw` makes the picture of the last results, and needs matplotlib alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "torch" / "fewer_bytes.py"
RESULT = "accuracy.json"
# What the bar is about: within so much of full precision, by the same optimizer in as many steps.
BAR = 1.02
MUST = {"int8", "powersgd rank=4", "top 1 %", "1-bit Adam"}


@dataclass(frozen=True)
class Task:
    """A training by one optimizer, and the settings of each way that suit it; the first is full precision."""

    title: str
    options: list[str]
    ways: dict[str, list[str]]


NONE = {"none": []}
CODES = {code: ["--compression", code] for code in ("bf16", "int8", "int4", "onebit")}
ADAM = {"1-bit Adam": ["--method", "onebit-adam"]}
DILOCO = {
    "DiLoCo, every 20": [
        *("--method", "diloco", "--every", "20", "--fragments", "2", "--compression", "int8"),
        *("--outer-lr", "1.0", "--outer-momentum", "0.0"),
    ]
}
FEW = {
    "powersgd rank=4": ["--compression", "powersgd rank=4"],
    "top 1 %": ["--compression", "topk density=0.01"],
}
# The first steps change most, so they go whole or nearly so. With a momentum of 0, dgc is top-k that begins with a quarter.
POWERSGD_LATER = {"powersgd rank=4": ["--compression", "powersgd rank=4 start=160"]}
MANUAL = ["--task", "manual", "--steps", "1600", "--batch-size", "8", "--warmup", "80", "--decay"]
TASKS = {
    "digits": Task(
        "digits, Adam",
        ["--task", "digits", "--steps", "2400", "--decay"],
        {**NONE, **CODES, **ADAM, **DILOCO, **FEW},
    ),
    "manual": Task(
        "transformer, Adam",
        MANUAL,
        {
            **NONE,
            "int8": CODES["int8"],
            **ADAM,
            **POWERSGD_LATER,
            "top 1 %": ["--compression", "dgc density=0.01 momentum=0 warmup=400"],
        },
    ),
    "manual-sgd": Task(
        "transformer, SGD with momentum",
        [*MANUAL, "--sgd", "--lr", "0.5"],
        {**NONE, **POWERSGD_LATER, "top 1 %": ["--compression", "dgc density=0.01 momentum=0.9 warmup=400"]},
    ),
}


def run(options: list[str]) -> dict[str, Any]:
    corro = Path(sys.executable).with_name("corro")
    argv = [str(corro), "run", "-np", "2", "--no-prefix", sys.executable, str(EXAMPLE), "--json", *options]
    env = {**os.environ, "CORRO_COMPRESS_INSIDE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, timeout=1800, check=True)
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def measure(name: str, task: Task, seeds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for way, options in task.ways.items():
        runs = [run([*task.options, *options, "--seed", str(seed)]) for seed in range(seeds)]
        losses = [one["loss"] for one in runs]
        ratio = runs[0]["plain_bytes"] / runs[0]["sent_bytes"]
        words = " ".join([*task.options, *options])
        rows.append({"way": way, "options": words, "loss": statistics.mean(losses), "losses": losses, "ratio": ratio})
        print(f"{name}, {way}: loss {losses}, bytes 1/{ratio:.1f}", file=sys.stderr, flush=True)
    return rows


def table(name: str, rows: list[dict[str, Any]]) -> str:
    plain = rows[0]["loss"]
    lines = []
    for row in rows:
        share = row["loss"] / plain
        verdict = "-" if row["way"] not in MUST else "met" if share <= BAR else "MISSED"
        seen = ", ".join(f"{loss:.4f}" for loss in row["losses"])
        more = f"{100 * (share - 1):+.1f} %"
        lines.append([row["way"], f"{row['loss']:.4f}", seen, more, f"1/{row['ratio']:.1f}", verdict])
    head = ["way", "test loss", "of each seed", "against none", "bytes", "bar: within 2 %"]
    return f"\n## {name}: {rows[0]['options']}\n\n{report.table(head, lines)}"


# Okabe and Ito's colours, which colour-blind readers can tell apart, each with a marker of its own.
STYLES = {
    "none": ("#000000", "o"),
    "bf16": ("#56B4E9", "s"),
    "int8": ("#0072B2", "D"),
    "int4": ("#009E73", "^"),
    "onebit": ("#CC79A7", "v"),
    "1-bit Adam": ("#CC79A7", "P"),
    "DiLoCo, every 20": ("#E69F00", "*"),
    "powersgd rank=4": ("#D55E00", "X"),
    "top 1 %": ("#555555", "p"),
}


def picture(found: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "corro"})
    together: dict[str, Any] = {"sharey": True, "squeeze": False, "layout": "constrained"}
    figure, panels = plt.subplots(1, len(found), figsize=(4.2 * len(found), 4.6), **together)
    furthest = max(100 * (loss / rows[0]["loss"] - 1) for rows in found.values() for row in rows for loss in row["losses"])
    for panel, (task, rows) in zip(panels[0], found.items(), strict=True):
        plain = rows[0]["loss"]
        panel.axhspan(0, 100 * (BAR - 1), color="#eeeeee", zorder=0, linewidth=0)
        for row in rows:
            color, marker = STYLES[row["way"]]
            more = [100 * (loss / plain - 1) for loss in row["losses"]]
            middle = statistics.mean(more)
            spread = [[middle - min(more)], [max(more) - middle]]
            style = {"color": color, "marker": marker, "markersize": 8, "linestyle": "none", "elinewidth": 1}
            panel.errorbar(row["ratio"], middle, yerr=spread, label=row["way"], **style)
        # Even around 0, logarithmic further out: one way may be far off.
        panel.set_yscale("symlog", linthresh=5)
        marks = [mark for mark in (-20, -10, -5, -2, 0, 2, 5, 10, 20, 50, 100, 200) if mark <= 2 * furthest]
        panel.set_yticks(marks, [f"{mark:+} %" if mark else "0" for mark in marks])
        panel.set_xscale("log")
        ticks = [1, 2, 4, 10, 20, 50, 100]
        panel.set_xticks(ticks, [str(tick) for tick in ticks])
        panel.minorticks_off()
        panel.set_xlabel("times fewer bytes, in the whole training")
        panel.set_title(TASKS[task].title, fontsize=10)
        panel.grid(True, color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("test loss against full precision")
    handles = {text: line for panel in panels[0] for line, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False)
    for path in (folder / "accuracy.svg", folder / "accuracy.png"):
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--draw", action="store_true", help="only the picture, of the results there are")
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    chosen = parser.parse_args()
    if not chosen.draw:
        facts = report.machine()
        print(report.machine_text(facts))
        known = chosen.out / RESULT
        record = json.loads(known.read_text()) if known.exists() else {}
        for name in chosen.tasks.split(","):
            rows = measure(name, TASKS[name], chosen.seeds)
            print(table(name, rows), flush=True)
            # A task at a time: one that takes long may run on another day.
            record[name] = {"machine": facts, "rows": rows}
            report.write_json(RESULT, record, chosen.out)
    else:
        record = json.loads((chosen.out / RESULT).read_text())
        picture({name: one["rows"] for name, one in record.items()}, chosen.out)


if __name__ == "__main__":
    main()
