#!/usr/bin/env python3
"""How long `RayExecutor` takes to start two workers, beside two bare actors: bench/ray_start.py [--rounds 5]

Both on the same Ray of two nodes on this machine, in turn. Bare: two actors of an empty class in a placement group, until both
have answered. Corro: until `start` returns, with seats and secret given. One JSON line a round; the last one has the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import time
from collections.abc import Callable

os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16))
os.environ.update(RAY_agent_register_timeout_ms="120000", RAY_USAGE_STATS_ENABLED="0")

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from corro.ray import RayExecutor

NODE = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}


class Bare:
    def answer(self) -> int:
        return os.getpid()


def bare() -> tuple[float, Callable[[], None]]:
    began = time.perf_counter()
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="PACK")
    ray.get(group.ready())
    kind = ray.remote(num_cpus=1)(Bare)
    where = [PlacementGroupSchedulingStrategy(group, bundle) for bundle in range(2)]
    actors = [kind.options(scheduling_strategy=place).remote() for place in where]
    ray.get([actor.answer.remote() for actor in actors])
    took = time.perf_counter() - began

    def end() -> None:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)

    return took, end


def corro() -> tuple[float, Callable[[], None]]:
    began = time.perf_counter()
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
    executor.start()
    return time.perf_counter() - began, executor.shutdown


def wait_for_room() -> None:
    until = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) < 4:
        assert time.monotonic() < until, "the last round still holds CPUs after 60 s"
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    contestants = {"two bare actors": bare, "RayExecutor.start": corro}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(-1, rounds):  # the first one only warms up
        for name, start in contestants.items():
            wait_for_room()
            took, end = start()
            end()
            if number >= 0:
                seconds[name].append(took)
                print(json.dumps({"round": number, "what": name, "seconds": round(took, 3)}), flush=True)
    medians = {name: round(statistics.median(values), 3) for name, values in seconds.items()}
    print(json.dumps({"medians": medians, "load": os.getloadavg()[0]}))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
