"""How long a job on Spark takes to its first allreduce, beside a barrier stage that does nothing, on executors that are warm.

    .venv-test-spark/bin/python bench/spark_start.py [times]

`local-cluster` with two executors of one core. Both are run in turn; the medians count. Asked for: at most 2 s more.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def first_allreduce() -> float:
    import numpy as np

    import corro.numpy as hvd

    hvd.init()
    hvd.allreduce(np.ones(1), name="first")
    return time.time()


def empty(rows: Any) -> Any:
    from pyspark import BarrierTaskContext

    BarrierTaskContext.get().barrier()
    return [time.time()]


def main() -> None:
    from pyspark.sql import SparkSession

    import corro.spark

    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("start")
    for name, value in {
        "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
    }.items():  # fmt: skip
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    context = session.sparkContext
    context.setLogLevel("ERROR")
    took: dict[str, list[float]] = {"an empty barrier stage": [], "run to the first allreduce": []}
    for turn in range(times + 1):
        begin = time.time()
        ends = context.parallelize(range(2), 2).barrier().mapPartitions(empty).collect()
        barrier = max(ends) - begin
        begin = time.time()
        allreduce = max(corro.spark.run(first_allreduce, num_proc=2)) - begin
        if turn:  # executors are warm from the second on
            took["an empty barrier stage"].append(barrier)
            took["run to the first allreduce"].append(allreduce)
    session.stop()
    for name, seconds in took.items():
        print(f"{name:28} {statistics.median(seconds):6.2f} s (worst {max(seconds):.2f})")
    print(f"more                         {statistics.median(took['run to the first allreduce']) - statistics.median(took['an empty barrier stage']):6.2f} s")


if __name__ == "__main__":
    main()
