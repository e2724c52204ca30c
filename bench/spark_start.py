#!/usr/bin/env python3
"""How long `corro.spark.run` takes to its first allreduce, beside a barrier stage that does nothing: bench/spark_start.py [--rounds 7]

    .venv-test-spark/bin/python bench/spark_start.py

Both on the same warm application (`local-cluster`, two executors with a slot each), in turn. The stage: from the call until its tasks
have passed a barrier together and the driver has its end. Corro: from the call of `run` until the first allreduce is done, by the clock
of this machine, which all share; and until `run` returns. One JSON line a round; the last one has the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

TASKS = 2


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local-cluster[{TASKS},1,1024]").appName("spark_start")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def together(rows: Any) -> Any:
    from pyspark import BarrierTaskContext

    BarrierTaskContext.get().barrier()
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

    spark = session()
    context = spark.sparkContext
    found: dict[str, list[float]] = {"barrier stage": [], "first allreduce": [], "run returned": [], "more": []}
    for number in range(-2, rounds):  # the first two only warm up
        began = time.time()
        context.parallelize(range(TASKS), TASKS).barrier().mapPartitions(together).collect()
        stage = time.time() - began
        began = time.time()
        reached = max(corro.spark.run(first_allreduce, num_proc=TASKS)) - began
        returned = time.time() - began
        if number >= 0:
            one = {"barrier stage": stage, "first allreduce": reached, "run returned": returned, "more": reached - stage}
            for name, seconds in one.items():
                found[name].append(seconds)
            print(json.dumps({"round": number, **{name: round(s, 3) for name, s in one.items()}}), flush=True)
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    print(json.dumps({"medians": medians, "load": os.getloadavg()[0]}))
    spark.stop()


if __name__ == "__main__":
    main()
