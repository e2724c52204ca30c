#!/usr/bin/env python3
"""Allreduce of 25 million gradients between hosts (network namespaces), plain and by each compression, over slow links.

Needs root and iproute2; says so and ends well where they are missing. Run it with a Python that has Corro and numpy.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import subprocess
import sys
from pathlib import Path

import report
from contestants import Unable
from link import Limit
from switch import LIMITS, Switch, hosts_on_a_switch

RANK = Path(__file__).resolve().parent / "peers" / "compressed_rounds.py"
# Hosts and link of each leg, and what must be reached there: how many times faster than plain.
LEGS: list[tuple[int, str, dict[str, float]]] = [
    (4, "100 Mbit/s", {"int8": 3.5, "onebit": 15, "powersgd rank=4": 20}),
    (2, "1 Gbit/s", {"int8": 3}),
    (2, "10 Gbit/s", {"int8": 1.3}),
]
WAYS = ["none", "auto", "bf16", "int8", "int4", "onebit", "powersgd rank=4", "topk density=0.01"]


def leg(switch: Switch, limit: Limit, hosts: int, ways: list[str], rounds: int) -> dict[str, float]:
    """Median seconds of each way."""
    switch.limit(limit)
    secret = secrets.token_hex(32)
    ranks = []
    for host in range(hosts):
        # As torchrun sets them: rank 0 serves the rendezvous store itself.
        env = [f"RANK={host}", f"WORLD_SIZE={hosts}", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"]
        env += [f"MASTER_ADDR={switch.address(0)}", "MASTER_PORT=47200"]
        env += [f"CORRO_SECRET={secret}", f"CORRO_HOSTNAME=h{host}", "CORRO_TIMEOUT=300"]
        argv = ["env", *env, sys.executable, str(RANK), json.dumps(ways), str(rounds)]
        ranks.append(subprocess.Popen(switch.command(host, argv), stdout=subprocess.PIPE, text=True))
    try:
        said = [rank.communicate(timeout=1800)[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise Unable(f"ranks failed: {[rank.returncode for rank in ranks]}")
    finally:
        for rank in ranks:
            rank.kill()
    seconds: dict[str, list[float]] = json.loads(said[0])["seconds"]
    return {way: statistics.median(times) for way, times in seconds.items()}


def auto_text(seconds: dict[str, float]) -> str:
    """`auto` beside the best of what it chooses from."""
    among = {way: seconds[way] for way in ("none", "bf16", "int8") if way in seconds}
    if "auto" not in seconds or not among:
        return ""
    best = min(among, key=among.__getitem__)
    over = seconds["auto"] / among[best]
    return f"\n`auto` takes {over:.3f} times as long as {best}, the best it can choose (bar 1.05: {'met' if over <= 1.05 else 'MISSED'})"


def table(hosts: int, limit: str, seconds: dict[str, float], bars: dict[str, float]) -> str:
    rows = []
    for way, time in seconds.items():
        faster = seconds["none"] / time
        bar = bars.get(way)
        verdict = "-" if bar is None else f"{bar} {'met' if faster >= bar else 'MISSED'}"
        rows.append([way, f"{time:.3f} s", f"{faster:.2f}", verdict])
    head = ["way", "time", "times faster than plain", "bar"]
    return f"\n## {hosts} hosts, {limit}\n\n{report.table(head, rows)}{auto_text(seconds)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--links", default="", help="e.g. '1 Gbit/s'; all by default")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    chosen = parser.parse_args()
    facts = report.machine()
    print(report.machine_text(facts))
    record: dict[str, object] = {"machine": facts, "rounds": chosen.rounds}
    legs = []
    for hosts, name, bars in LEGS:
        if chosen.links and name not in chosen.links.split(","):
            continue
        limit = next(limit for limit in LIMITS if limit.name == name)
        try:
            with hosts_on_a_switch(hosts) as switch:
                seconds = leg(switch, limit, hosts, chosen.ways.split(","), chosen.rounds)
        except Unable as error:
            print(f"compression: skipped: {error}")
            return
        print(table(hosts, name, seconds, bars), flush=True)
        legs.append({"hosts": hosts, "link": name, "shaping": limit.text(), "seconds": seconds, "bars": bars})
    record["legs"] = legs
    print(f"\nwrote {report.write_json('compression.json', record, chosen.out)}")


if __name__ == "__main__":
    main()
