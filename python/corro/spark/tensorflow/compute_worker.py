"""Workers of TensorFlow's data service, one in each slot of a Spark application:

    python -m corro.spark.tensorflow.compute_worker CONFIGFILE [--dispatchers 1] [--dispatcher-side compute|training]

The driver writes CONFIGFILE, with which trainings find the workers; they run until the training says that it is over, or
until the driver is ended (SIGTERM). See `corro.tensorflow.data`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Any

import corro.spark

__all__ = ["main"]


def main(
    dispatchers: int = 1, dispatcher_side: str = "compute", configfile: str | None = None, timeout: int = 60
) -> None:
    """Runs as many workers as the application has slots (Spark's default parallelism), until the training is over."""
    from corro.spark._spark_job import active_context
    from corro.tensorflow.data.compute_service import ComputeService, TfDataServiceConfig

    workers = int(active_context().defaultParallelism)
    if workers % dispatchers:
        raise ValueError(f"number of slots ({workers}) must be a multiple of number of dispatchers ({dispatchers})")
    service = ComputeService(dispatchers, workers // dispatchers)
    config = TfDataServiceConfig(
        dispatchers, workers // dispatchers, dispatcher_side, service.addresses, service.key, timeout
    )
    if configfile:
        config.write(configfile)
    corro.spark.run(_work, args=(config.to_dict(),), num_proc=workers)


def _work(config: dict[str, Any]) -> None:
    """What each worker does. Corro is used for its number only."""
    import corro.numpy as hvd
    from corro.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn

    hvd.init()
    compute_worker_fn(TfDataServiceConfig.from_dict(config))


def _program() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configfile", metavar="CONFIGFILE", help="the file that trainings read")
    parser.add_argument("--dispatchers", type=int, default=1, help="how many dispatchers (default: %(default)s)")
    parser.add_argument(
        "--dispatcher-side",
        default="compute",
        choices=["compute", "training"],
        help="where dispatchers run (default: %(default)s)",
    )
    parser.add_argument("--timeout", type=int, default=60, help="seconds to wait for others (default: %(default)s)")
    chosen = parser.parse_args()

    from pyspark.sql import SparkSession

    session = SparkSession.builder.appName("corro data service").getOrCreate()
    # By an exception, so that all ranks are ended before the application is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main(chosen.dispatchers, chosen.dispatcher_side, chosen.configfile, chosen.timeout)
    finally:
        session.stop()


if __name__ == "__main__":
    _program()
