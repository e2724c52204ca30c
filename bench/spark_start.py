#!/usr/bin/env python3
"""How long `corro.spark.run` takes to its first allreduce, beside a barrier stage that does nothing.

    .venv-test-spark/bin/python bench/spark_start.py [--rounds 7]

Both on the same warm application (`local-cluster`, two executors with a slot each), in turn. The stage: from the call until
the driver has its end; its tasks do not even wait for each other, which by Spark's own barrier would take them a second.
Corro: from the call of `run` until the first allreduce is done, by the clock of this machine, which all share; and until
`run` returns. One JSON line a round; the last one has the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

from spark_session import session

TASKS = 2


def nothing(rows: Any) -> Any:
    return rows


def first_allreduce() -> float:
    import numpy as np

    import corro.numpy as hvd

    hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, name="first")[0] == hvd.size()
    return time.time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    import corro.spark

    spark = session("spark_start", TASKS)
    context = spark.sparkContext
    found: dict[str, list[float]] = {"barrier stage": [], "first allreduce": [], "run returned": [], "more": []}
    for number in range(-2, rounds):  # the first two only warm up
        began = time.time()
        context.parallelize(range(TASKS), TASKS).barrier().mapPartitions(nothing).collect()
        stage = time.time() - began
        began = time.time()
        reached = max(corro.spark.run(first_allreduce, num_proc=TASKS)) - began
        returned = time.time() - began
        if number >= 0:
            one = {
                "barrier stage": stage,
                "first allreduce": reached,
                "run returned": returned,
                "more": reached - stage,
            }
            for name, seconds in one.items():
                found[name].append(seconds)
            print(json.dumps({"round": number, **{name: round(s, 3) for name, s in one.items()}}), flush=True)
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    print(json.dumps({"medians": medians, "load": os.getloadavg()[0]}))
    spark.stop()


if __name__ == "__main__":
    main()
