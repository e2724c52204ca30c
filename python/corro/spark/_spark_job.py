"""The Spark job whose tasks are the ranks' homes: started in a thread of its own, cancelled by its tag.

The job's key travels as a broadcast variable, which Spark protects as it protects data (`spark.io.encryption.enabled`,
`spark.network.crypto.enabled`), and is destroyed with the job. It is never in a task's closure, a property, a description or
on a command line, so no event log and no page of Spark's has it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from corro._tasks.task import Place, serve

__all__ = ["SparkJob", "active_context", "slots"]

_numbers = itertools.count()


class SparkJob:
    """`tasks` tasks. In barrier mode all begin together or none does, and Spark does not repeat one that has failed."""

    def __init__(self, context: Any, tasks: int, place: Place, key: bytes, is_elastic: bool, ended: Callable[[], None]):
        from pyspark import InheritableThread

        self._context = context
        self._tasks = tasks
        self._place = place
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

    def finish(self, seconds: float) -> None:
        """Waits for its end, so that its slots are free again, and cancels it if that takes too long."""
        if not self.over.wait(seconds):
            self.cancel()
            self.over.wait(seconds)
        with suppress(Exception):
            self._key.destroy()


def _partition(place: Place, key: Any) -> Callable[[Iterable[int]], Iterator[int]]:
    def hold(rows: Iterable[int]) -> Iterator[int]:
        for index in rows:
            serve(place, key.value, index)
            yield index

    return hold


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
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        raise Exception(
            "Could not find an active SparkContext: corro.spark runs in a Spark application. Make a SparkSession first "
            "(SparkSession.builder.getOrCreate()). Spark Connect has no SparkContext: run this on the cluster's side."
        )
    return context


def slots(context: Any) -> str:
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
