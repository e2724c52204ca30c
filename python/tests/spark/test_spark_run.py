"""`corro.spark.run` on a real Spark: an application whose executors are processes of their own."""

from __future__ import annotations

import io
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import spark_functions as functions

import corro.spark
from corro.runner import JobFailed
from corro.runner.common.util.timeout import TimeoutException

pytestmark = pytest.mark.timeout(600)


def test_results_come_by_rank_from_executors_of_their_own(spark: Any) -> None:
    out, err = io.StringIO(), io.BytesIO()
    given = corro.spark.run(
        functions.add_up, args=(1.0,), kwargs={"scale": 2.0}, env={"SAID_BY_THE_DRIVER": "yes"}, stdout=out, stderr=err
    )
    assert [one["rank"] for one in given] == [0, 1, 2]
    assert {one["size"] for one in given} == {3}
    assert {one["sum"] for one in given} == {2.0 * (0 + 1 + 2 + 3)}
    assert [one["local"] for one in given] == [(0, 3), (1, 3), (2, 3)]
    assert len({one["executor"] for one in given}) == 3
    assert {one["said"] for one in given} == {"yes"}
    assert not any(one["secret on a command line"] for one in given)
    assert sorted(out.getvalue().splitlines()) == [f"[{rank}]<stdout>:rank {rank} speaks" for rank in range(3)]
    complaints = [line for line in err.getvalue().decode().splitlines() if "complains" in line]
    assert sorted(complaints) == [f"[{rank}]<stderr>:rank {rank} complains" for rank in range(3)]


def _descriptions(spark: Any) -> list[str]:
    """What Spark's pages say of its jobs."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    described = [jobs.apply(at).description() for at in range(jobs.size())]
    return [one.get() for one in described if one.isDefined()]


def test_it_is_watched_by_page_and_recording_and_named_in_sparks_pages(spark: Any, tmp_path: Path) -> None:
    said = io.StringIO()
    record = tmp_path / "run.corro"
    given = corro.spark.run(
        functions.add_up, num_proc=2, nics=["lo"], page=True, record=record, stdout=said, stderr=said
    )
    assert [one["sum"] for one in given] == [1.0, 1.0]
    assert "watch this job at http://127.0.0.1:" in said.getvalue()
    assert record.stat().st_size > 0
    assert any(re.fullmatch(r"corro\.spark\.run\.\d+: a Corro job on 2 tasks", one) for one in _descriptions(spark))


def test_a_lambda_a_closure_and_fewer_processes_than_slots(spark: Any) -> None:
    there = 5
    assert corro.spark.run(lambda more: there + more, args=(2,), num_proc=1) == [7]
    assert corro.spark.run(os.getpid, num_proc=2) != corro.spark.run(os.getpid, num_proc=2)


def test_an_exception_names_its_rank_and_is_the_cause(spark: Any) -> None:
    with pytest.raises(JobFailed, match=r"(?s)corro.spark.run failed: rank 1 on .*no such column") as failed:
        corro.spark.run(functions.fail_on, args=(1,), num_proc=2)
    assert failed.value.rank == 1
    assert isinstance(failed.value.__cause__, ValueError)
    # Its slots are free again.
    assert corro.spark.run(functions.add_up, num_proc=3)[2]["sum"] == 3.0


def test_too_few_slots_are_told_with_who_holds_them(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(
        TimeoutException, match=r"not started 5 tasks within 3 s; this application has 3 slots, of which 3"
    ):
        corro.spark.run(functions.add_up, num_proc=5, start_timeout=3)

    enough = tmp_path / "enough"

    def hold(rows: Any) -> Any:
        until = time.monotonic() + 100
        while not enough.exists() and time.monotonic() < until:
            time.sleep(0.1)
        return rows

    other = threading.Thread(target=lambda: spark.sparkContext.parallelize(range(2), 2).mapPartitions(hold).collect())
    other.start()
    try:
        tracker = spark.sparkContext.statusTracker()
        until = time.monotonic() + 60
        while sum(tracker.getStageInfo(stage).numActiveTasks for stage in tracker.getActiveStageIds()) < 2:
            assert time.monotonic() < until, "the other job has not begun"
            time.sleep(0.1)
        with pytest.raises(TimeoutException, match=r"has 3 slots, of which 1 are free: stage \d+ .* holds 2"):
            corro.spark.run(functions.add_up, num_proc=3, start_timeout=4)
    finally:
        enough.touch()
        other.join()


def _pids(note: Path, ranks: int) -> list[int]:
    until = time.monotonic() + 60
    files = [note.with_name(f"{note.name}.{rank}") for rank in range(ranks)]
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < until, "the ranks have not begun"
        time.sleep(0.05)
    return [int(file.read_text()) for file in files]


def _wait_until_gone(pids: list[int], seconds: float = 15) -> None:
    until = time.monotonic() + seconds
    while any(_lives(pid) for pid in pids):
        assert time.monotonic() < until, f"of {pids} some are left"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False


def test_cancelling_the_job_group_ends_all_ranks(spark: Any, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    caught: list[BaseException] = []

    def job() -> None:
        spark.sparkContext.setJobGroup("mine", "a group of the user's")
        try:
            corro.spark.run(functions.wait_for_end, args=(str(note),), num_proc=2)
        except BaseException as error:
            caught.append(error)

    from pyspark import InheritableThread

    running = InheritableThread(target=job)
    running.start()
    pids = _pids(note, 2)
    spark.sparkContext.cancelJobGroup("mine")
    running.join(30)
    assert isinstance(caught[0], JobFailed)
    assert "cancelled" in str(caught[0]).lower()
    _wait_until_gone(pids)


def test_ctrl_c_ends_all_ranks(spark: Any, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    seen: list[int] = []

    def press() -> None:
        seen.extend(_pids(note, 2))
        os.kill(os.getpid(), signal.SIGINT)

    # What Python does by itself; Spark's own handler cancels all jobs besides.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            corro.spark.run(functions.wait_for_end, args=(str(note),), num_proc=2)
    finally:
        signal.signal(signal.SIGINT, before)
    _wait_until_gone(seen)
    assert corro.spark.run(functions.add_up, num_proc=3)[0]["sum"] == 3.0


def test_a_lost_executor_is_named_soon(spark: Any, tmp_path: Path) -> None:
    note = tmp_path / "killed"
    with pytest.raises(JobFailed, match=r"rank 1 on \S+ was lost with Spark's task 1") as failed:
        corro.spark.run(functions.lose_executor_of, args=(1, str(note)), num_proc=3)
    took = time.time() - float(note.read_text())
    assert failed.value.rank == 1
    assert "xecutor" in str(failed.value), failed.value
    # The bar is 5 s on a machine that has nothing else to do; docs/performance.md has what it takes.
    print(f"a lost executor was reported after {took:.1f} s")
    assert took < 30


def test_wrong_arguments_are_refused_before_anything_starts(application: Any) -> None:
    with pytest.raises(ValueError, match="both given"):
        corro.spark.run(functions.add_up, use_gloo=True, use_mpi=True)
    with pytest.raises(ValueError, match="num_proc is 0"):
        corro.spark.run(functions.add_up, num_proc=0)
    with pytest.raises(ValueError, match="need min <= num_proc <= max"):
        corro.spark.run_elastic(functions.add_up, num_proc=2, min_num_proc=3)


def test_the_alias_is_the_same_module() -> None:
    import horovod.spark

    assert horovod.spark.run is corro.spark.run
