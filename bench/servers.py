#!/usr/bin/env python3
"""Parameter servers on four worker hosts and some spare ones (network namespaces), beside what the formula says; and hiccups.

Starts `exchange` (crates/corro-server/examples) as servers and workers, exchanges 16 MB in rounds over links of 200 Mbit/s, and prints
seconds, the formula's seconds and their ratio, the bytes that left each kind of host, and what our own ring (`corro-rounds`) takes on the
same hosts, before and after. Then, without a limit: how many steps 8 workers make of which each takes six times as long in
5 % of them, in rounds and with bounds. Needs root and iproute2; says so and ends well where they are missing. Plain Python will do:

    cargo build --release -p corro-bench && cargo build --release -p corro-server --example exchange
    python3 bench/servers.py [--check]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import report
from contestants import Contestant, Launch, Unable, corro_ranks
from link import Limit
from switch import Switch, hosts_on_a_switch

WORKERS = 4
BYTES = 16 << 20
ROUNDS = 7
LIMIT = Limit("200 Mbit/s", "200mbit", 200e6, "64kb", "50ms")
PORT = 47301
# How far from the formula is still what it says; and how much faster than our ring as many spare hosts as workers must be.
TOLERANCE = 0.10
FASTER = 1.35


def shares(n: int, k: int) -> tuple[float, float]:
    """Of one spare host and of one worker host."""
    if k == 0:
        return 0.0, 1 / n
    if k >= n:
        return 1 / k, 0.0
    whole = n * n + k * n - 2 * k
    return 2 * (n - 1) / whole, (n - k) / whole


def formula(n: int, k: int) -> float:
    """Seconds times bandwidth over bytes."""
    return 1.0 if k >= n else 2 * n * (n - 1) / (n * n + k * n - 2 * k)


def exchange(binary: Path, switch: Switch, k: int) -> tuple[list[float], list[int]]:
    """Seconds of each round, and the bytes that left each host."""
    spare, worker = shares(WORKERS, k)
    hosts = [(host, worker if host < WORKERS else spare) for host in range(WORKERS + k)]
    serving = [(host, share) for host, share in hosts if share > 0]
    started: list[subprocess.Popen[str]] = []

    def start(host: int, *words: str) -> subprocess.Popen[str]:
        argv = switch.command(host, [str(binary), *words])
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    try:
        for host, _ in serving:
            server = start(host, "server", f"{switch.address(host)}:{PORT}")
            assert server.stdout is not None and server.stdout.readline(), f"no server on host {host}"
        at = [f"{switch.address(host)}:{PORT}={share}" for host, share in serving]
        before = [switch.sent_bytes(host) for host, _ in hosts]
        words = [str(WORKERS), "sum", str(BYTES), str(ROUNDS), *at]
        workers = [start(host, "worker", str(host), *words) for host in range(WORKERS)]
        said = [worker.communicate(timeout=300)[0] for worker in workers]
        assert all(worker.returncode == 0 for worker in workers), said
        moved = [switch.sent_bytes(host) - sent for (host, _), sent in zip(hosts, before, strict=True)]
        rounds = [[float(line.split()[2]) for line in text.splitlines() if line.startswith("round")] for text in said]
        # A round is over when the last worker has it; the first one warms connections up.
        return [max(seconds) for seconds in zip(*rounds, strict=True)][1:], moved
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
            process.wait()


def ring(switch: Switch) -> float:
    """Median seconds of an allreduce by our own ring, on the worker hosts."""
    hosts = [f"h{host}" for host in range(WORKERS)]
    ranks = [
        Launch(switch.command(host, rank.argv), {**rank.env, "CORRO_ALGORITHM": "ring"})
        for host, rank in enumerate(corro_ranks(hosts, f"{switch.address(0)}:{PORT + 1}"))
    ]
    contestant = Contestant("our ring", ranks, Path(tempfile.mkdtemp(prefix="corro-bench-")))
    try:
        return contestant.ask(f"allreduce {BYTES} {ROUNDS - 1} 1", 300)["median_us"] / 1e6
    finally:
        contestant.close()


def hiccups(binary: Path, bound: str, workers: int = 8, steps: int = 100, milliseconds: int = 10) -> float:
    """Steps per second of a worker, on this very host."""
    server = subprocess.Popen([str(binary), "server", "127.0.0.1:0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    at = server.stdout.readline().strip()
    try:
        words = [str(workers), f"{bound},hiccups={milliseconds}", "4096", str(steps), at]
        started = [
            subprocess.Popen([str(binary), "worker", str(me), *words], stdout=subprocess.PIPE, text=True)
            for me in range(workers)
        ]
        said = [process.communicate(timeout=300)[0] for process in started]
        seconds = [float(line.split()[1]) for text in said for line in text.splitlines() if line.startswith("all")]
        return steps / max(seconds)
    finally:
        server.terminate()
        server.wait()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--exchange", type=Path, default=Path("target/release/examples/exchange"))
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed")
    parser.add_argument("--out", type=Path, help="a folder for servers.json")
    chosen = parser.parse_args(arguments)
    facts = report.machine()
    print(report.machine_text(facts), f"load average {os.getloadavg()[0]:.2f}")
    binary = chosen.exchange.resolve()
    record: dict[str, object] = {"machine": facts, "load": os.getloadavg(), "link": LIMIT.text(), "bytes": BYTES}
    try:
        failed = spare_hosts(binary, record)
    except Unable as reason:
        print(f"servers: {reason}")
        return 0
    failed |= bounds(binary, record)
    if chosen.out:
        print(f"wrote {report.write_json('servers.json', record, chosen.out)}")
    return int(failed and chosen.check)


def spare_hosts(binary: Path, record: dict[str, object]) -> bool:
    """What k spare hosts bring; whether a bar is missed."""
    failed = False
    print(f"{BYTES >> 20} MB on {WORKERS} workers, {LIMIT.name}: medians of {ROUNDS - 1} rounds")
    rows, found = [], []
    for k in (0, 1, 2, 4):
        with hosts_on_a_switch(WORKERS + k) as switch:
            switch.limit(LIMIT)
            before = ring(switch)
            seconds, moved = exchange(binary, switch, k)
            rings = statistics.mean([before, ring(switch)])
        expected = formula(WORKERS, k) * BYTES * 8 / LIMIT.bits_per_s
        measured = statistics.median(seconds)
        worker, spare = (statistics.mean(part) / ROUNDS / 2**20 if part else 0.0 for part in (moved[:WORKERS], moved[WORKERS:]))
        off, faster = measured / expected, rings / measured
        rows.append([str(k), *(f"{x:.3f}" for x in (measured, expected, off, rings, faster)), f"{worker:.2f}", f"{spare:.2f}"])
        found.append({"spare": k, "seconds": measured, "formula": expected, "ring": rings, "mb_worker": worker, "mb_spare": spare})
        failed |= off > 1 + TOLERANCE or (k == WORKERS and faster < FASTER)
    head = ["spare hosts", "seconds", "formula", "ratio", "our ring", "times faster", "MB sent by a worker host", "by a spare host"]
    print(report.table(head, rows))
    record["spare_hosts"] = found
    return failed


def bounds(binary: Path, record: dict[str, object]) -> bool:
    """How many steps workers with hiccups make; whether the bar is missed."""
    rates = {bound: statistics.median(hiccups(binary, bound) for _ in range(3)) for bound in ("0", "1", "3", "10")}
    text = ", ".join(f"s={bound} {rate:.1f} ({rate / rates['0']:.2f}x)" for bound, rate in rates.items())
    print(f"8 workers, 5 % of steps take six times as long: steps/s {text}")
    record["hiccups"] = rates
    return rates["3"] < 1.5 * rates["0"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
