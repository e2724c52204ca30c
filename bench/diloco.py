#!/usr/bin/env python3
"""DiLoCo between hosts (network namespaces) with slow links, beside a training that averages every gradient.

`examples/torch/fewer_bytes.py` on each host, by both ways: bytes that leave a host, steps a second, test loss; mean of several
seeds. Needs root and iproute2; says so and ends well where they are missing. Run it with a Python that has Corro, torch and scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import report
from contestants import Unable
from switch import LIMITS, Switch, hosts_on_a_switch

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "torch" / "fewer_bytes.py"
WAYS = {
    "every gradient": [],
    "DiLoCo": [
        *("--method", "diloco", "--every", "50", "--fragments", "4", "--compression", "int8"),
        *("--delay", "5", "--outer-lr", "1.0", "--outer-momentum", "0.0"),
    ],
}
# Bytes, steps a second and loss, each as a share of what a plain training has.
BARS = {"bytes": 1 / 180, "steps": 20.0, "loss": 1.02}


def run(switch: Switch, options: list[str]) -> dict[str, Any]:
    """One training; what host 0 has sent in it, its start included."""
    before = switch.sent_bytes(0)
    said = switch.ranks_on_each([str(EXAMPLE), "--json", *options], 900)
    result = json.loads(next(line for line in said[0].splitlines() if line.startswith("{")))
    return {**result, "wire_bytes": switch.sent_bytes(0) - before}


def leg(hosts: int, steps: int, seeds: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with hosts_on_a_switch(hosts) as switch:
        switch.limit(next(limit for limit in LIMITS if limit.name == "25 Mbit/s"))
        # A start without steps: its bytes (parameters are broadcast) are not the training's.
        start = run(switch, ["--steps", "0"])["wire_bytes"]
        for way, options in WAYS.items():
            runs = [run(switch, ["--steps", str(steps), "--seed", str(seed), *options]) for seed in range(seeds)]
            found[way] = {
                "bytes": statistics.mean(one["wire_bytes"] - start for one in runs) / steps,
                "steps": steps / statistics.median(one["seconds"] for one in runs),
                "loss": statistics.mean(one["loss"] for one in runs),
            }
            print(f"{hosts} hosts, {way}: {found[way]}", file=sys.stderr)
    return found


def table(hosts: int, found: dict[str, dict[str, float]]) -> str:
    plain, ours = found["every gradient"], found["DiLoCo"]
    share = {what: ours[what] / plain[what] for what in plain}
    met = {"bytes": share["bytes"] <= BARS["bytes"], "steps": share["steps"] >= BARS["steps"], "loss": share["loss"] <= BARS["loss"]}
    bars = {"bytes": "1/180", "steps": "20 times", "loss": "+2 %"}
    shown = {"bytes": f"1/{1 / share['bytes']:.0f}", "steps": f"{share['steps']:.1f} times", "loss": f"{100 * (share['loss'] - 1):+.1f} %"}
    rows = [
        [what, f"{plain[what]:.4g}", f"{ours[what]:.4g}", shown[what], f"{bars[what]} {'met' if met[what] else 'MISSED'}"]
        for what in ("bytes", "steps", "loss")
    ]
    head = ["a step's bytes, steps a second, test loss", "every gradient", "DiLoCo", "share", "bar"]
    return f"\n## {hosts} hosts, 25 Mbit/s\n\n{report.table(head, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default="2,4")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    chosen = parser.parse_args()
    facts = report.machine()
    print(report.machine_text(facts))
    found: dict[str, dict[str, dict[str, float]]] = {}
    for hosts in map(int, chosen.hosts.split(",")):
        try:
            found[f"{hosts} hosts"] = one = leg(hosts, chosen.steps, chosen.seeds)
        except Unable as error:
            print(f"diloco: skipped: {error}")
            return
        print(table(hosts, one), flush=True)
    record = {"machine": facts, "steps": chosen.steps, "seeds": chosen.seeds, "found": found}
    print(f"\nwrote {report.write_json('diloco.json', record, chosen.out)}")


if __name__ == "__main__":
    main()
