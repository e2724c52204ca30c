"""Workers of TensorFlow's data service in the tasks of a Spark application: one in each of its slots.

    python -m corro.spark.tensorflow.compute_worker CONFIGFILE

The master and other settings are those of spark-defaults.conf or PYSPARK_SUBMIT_ARGS, as for any driver that is a plain
Python program. The driver writes CONFIGFILE, with which trainings find the workers
(`corro.tensorflow.data.compute_service`). It ends when the training is over; SIGTERM ends workers and application.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

from corro import spark
from corro.spark._spark_job import active_context, driver_address
from corro.tensorflow.data.compute_service import ComputeService, TfDataServiceConfig, compute_worker_fn
from corro.tensorflow.data.compute_worker import _by_command_line

__all__ = ["main", "serve"]


def serve(
    dispatchers: int = 1, dispatcher_side: str = "compute", configfile: str | None = None, timeout: int = 60
) -> None:
    """Runs a worker in each slot of the active Spark application until the training is over.

    There are as many as Spark's default parallelism; `ValueError` unless that is a multiple of `dispatchers`. `timeout`
    is how many seconds workers and trainings wait for each other.

    Example:
        >>> from corro.spark.tensorflow.compute_worker import serve
        >>> serve(dispatchers=2, configfile="/mnt/shared/service.json")  # doctest: +SKIP
    """
    context = active_context()
    workers = int(context.defaultParallelism)
    if dispatchers < 1 or workers % dispatchers:
        raise ValueError(f"number of processes ({workers}) must be a multiple of number of dispatchers ({dispatchers})")
    service = ComputeService(dispatchers, workers // dispatchers)
    port = service.addresses[0][1]
    # First the address by which executors know the driver.
    addresses = list(dict.fromkeys([(driver_address(context), port), *service.addresses]))
    config = TfDataServiceConfig(dispatchers, workers // dispatchers, dispatcher_side, addresses, service.key, timeout)
    if configfile:
        config.write(configfile)
    spark.run(_work, args=(config.to_dict(),), num_proc=workers)


def _work(config: dict[str, object]) -> None:
    """In each rank."""
    from corro._front import basics

    basics.init()
    compute_worker_fn(TfDataServiceConfig.from_dict(config))


def main(
    dispatchers: int = 1, dispatcher_side: str = "compute", configfile: str | None = None, timeout: int = 60
) -> None:
    """`serve` in a Spark application of its own, which is stopped in the end, also by SIGTERM.

    Example:
        >>> from corro.spark.tensorflow.compute_worker import main
        >>> main(configfile="/mnt/shared/service.json")  # doctest: +SKIP
    """
    from pyspark.sql import SparkSession

    session = SparkSession.builder.appName("corro: tf.data service").getOrCreate()
    signal.signal(signal.SIGTERM, _leave)
    try:
        serve(dispatchers, dispatcher_side, configfile, timeout)
    finally:
        session.stop()


def _leave(number: int, frame: FrameType | None) -> None:
    # As an exception, so that all that is open is closed on the way out.
    sys.exit(128 + number)


if __name__ == "__main__":
    _by_command_line(main, __doc__)
