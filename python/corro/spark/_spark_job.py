"""The Spark job whose tasks are the ranks' homes: started in a thread of its own, cancelled by its tag.

The job's key travels as a broadcast variable, which Spark protects as it protects data (`spark.io.encryption.enabled`,
`spark.network.crypto.enabled`), and is destroyed with the job. It is never in a task's closure, a property, a description or
on a command line, so no event log and no page of Spark's has it.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from corro._tasks.driver import Calls
from corro._tasks.messages import Kind
from corro._tasks.task import Identity, Place, modules, serve

__all__ = ["KIND", "SPARKS_PYTHON", "SparkJob", "active_context", "driver_address", "tasks_of"]

KIND = Kind("Spark", "task", "executor")
# Ranks are started by the Python of Spark's workers, which the task knows.
SPARKS_PYTHON = ["/bin/sh", "-c", 'exec "$PYSPARK_PYTHON" -m corro.runner.worker']

# Tasks that Spark had no slot for begin when an elastic job is over, and find nobody there. They are not waited for longer.
_LATE_SECONDS = 2.0

_numbers = itertools.count()


class SparkJob:
    """`tasks` tasks. In barrier mode all begin together or none does, and Spark does not repeat one that has failed."""

    def __init__(self, context: Any, tasks: int, place: Place, key: bytes, is_elastic: bool, ended: Callable[[], None]):
        from pyspark import InheritableThread

        self._context = context
        self._tasks = tasks
        self._place = place
        self._is_elastic = is_elastic
        # Spark refuses barriers where it may take executors away.
        changing = context.getConf().get("spark.dynamicAllocation.enabled", "false").lower() == "true"
        self.is_barrier = not is_elastic and not changing
        kind = "run_elastic" if is_elastic else "run"
        self._group = f"corro.spark.{kind}.{next(_numbers)}"
        self._key = context.broadcast(key)
        self._ended = ended
        self.over = threading.Event()
        self.failure: str | None = None
        # It inherits what the user has set for his jobs: group, pool, description.
        self._thread = InheritableThread(target=self._run, daemon=True, name=self._group)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        context = self._context
        try:
            context.addJobTag(self._group)
            # A group of the user's own stays, so that he can cancel this job by it.
            if context.getLocalProperty("spark.jobGroup.id") is None:
                context.setJobGroup(self._group, self._description(), interruptOnCancel=True)
            else:
                context.setInterruptOnCancel(True)
                if context.getLocalProperty("spark.job.description") is None:
                    context.setJobDescription(self._description())
            rows = context.parallelize(range(self._tasks), self._tasks)
            self._barrier(rows).mapPartitions(_partition(self._place, self._key)).collect()
        except Exception as error:
            self.failure = _reason(error)
        finally:
            self.over.set()
            self._ended()

    def _description(self) -> str:
        return f"{self._group}: a Corro job on {self._tasks} tasks"

    def _barrier(self, rows: Any) -> Any:
        return rows.barrier() if self.is_barrier else rows

    def cancel(self) -> None:
        """Ends its tasks, wherever they are."""
        if not self.over.is_set():
            with suppress(Exception):  # the context may be stopped
                self._context.cancelJobsWithTag(self._group)

    def too_few(self, fewest: int, seconds: float, addresses: str) -> str:
        return (
            f"Spark has not started {fewest} tasks within {seconds:g} s; {_slots(self._context)}. "
            "Give a smaller num_proc, wait for other stages and applications to end, or raise start_timeout. If a stage "
            f"of this job holds slots, its tasks can't reach the driver at {addresses}: open it to executors."
        )

    def finish(self, seconds: float) -> None:
        """Waits for its end, so that its slots are free again, and cancels it if that takes too long."""
        if not self.over.wait(_LATE_SECONDS if self._is_elastic else seconds):
            self.cancel()
            self.over.wait(seconds)
        with suppress(Exception):
            self._key.destroy()


def _partition(place: Place, key: Any) -> Callable[[Iterable[int]], Iterator[int]]:
    def hold(rows: Iterable[int]) -> Iterator[int]:
        for index in rows:
            _serve(place, key.value, index)
            yield index

    return hold


def _serve(place: Place, key: bytes, index: int) -> None:
    """In a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    # What Spark calls this executor, as far as that is known here: the end of the name of its folder.
    executor = os.path.basename(os.getcwd())
    serve(place, key, Identity(index, attempt, executor), _environment(_devices(context)))


def _devices(context: Any) -> list[str]:
    """The GPUs that Spark has given to this task."""
    resources = context.resources() if context is not None else {}
    return list(resources["gpu"].addresses) if "gpu" in resources else []


def _environment(devices: list[str]) -> dict[str, str]:
    """What ranks start with: what this task has, and its ways to find modules (`--py-files` among them)."""
    given = {"CORRO_SPARK_DEVICES": ",".join(devices)} if devices else {}
    # Between a worker of Spark and its JVM; ranks are neither.
    private = ("PYTHON_WORKER_FACTORY_", "PYTHON_UNIX_DOMAIN_", "SPARK_AUTH_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(private)}
    return {**own, **modules(), "PYSPARK_PYTHON": sys.executable, **given}


def _reason(error: Exception) -> str:
    """The line of Spark's account that says what happened."""
    raised = getattr(error, "java_exception", None)
    text = str(raised.getMessage()) if raised is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [
        line
        for line in lines
        if any(word in line for word in ("ExecutorLostFailure", "Most recent failure", "cancelled"))
    ]
    line = (told or lines or [type(error).__name__])[0]
    return line[:600]


def active_context() -> Any:
    """The running SparkContext."""
    from pyspark.sql.utils import is_remote

    # Not even where its server runs in this process: Spark's own parts here then speak to the server alone.
    if is_remote():
        raise RuntimeError(
            "Could not find an active SparkContext: this program is a client of Spark Connect, which has none, and "
            "executors can't reach it. Run it as a classic driver in place of that: by spark-submit, or with "
            "SparkSession.builder.master(...) and without SPARK_REMOTE."
        )
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        raise RuntimeError(
            "Could not find an active SparkContext: corro.spark runs in a Spark application. Make a SparkSession first "
            "(SparkSession.builder.getOrCreate())."
        )
    return context


def driver_address(context: Any) -> str:
    """By which executors know the driver."""
    return str(context.getConf().get("spark.driver.host", "localhost"))


def tasks_of(context: Any, count: int, is_elastic: bool) -> Callable[[Calls], SparkJob]:
    """What makes the Spark job of a job."""

    def make(calls: Calls) -> SparkJob:
        return SparkJob(context, count, calls.launcher, calls.key, is_elastic, calls.ended)

    return make


def _slots(context: Any) -> str:
    """How many tasks this application can run at once, and who holds its slots, in a sentence."""
    try:
        scala = context._jsc.sc()
        profile = scala.resourceProfileManager().defaultResourceProfile()
        total = int(scala.maxNumConcurrentTasks(profile))
        tracker = context.statusTracker()
        held = []
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None and info.numActiveTasks:
                held.append((info.numActiveTasks, f"stage {stage} ({info.name}) holds {info.numActiveTasks}"))
        free = max(0, total - sum(number for number, _ in held))
        who = "; ".join(text for _, text in held) or "no stage of this application holds one"
        return f"this application has {total} slots, of which {free} are free: {who}"
    except Exception as error:  # the JVM's side is not a public interface
        return f"how many slots are free is not known ({error})"
