"""`corro.spark.run_elastic` on a real Spark: executors die, and Spark starts others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spark_functions as functions

import corro.spark

# Most of it is the start of an executor, which takes minutes on a machine that is busy.
pytestmark = pytest.mark.timeout(900)


def steps(folder: Path) -> list[tuple[float, int, int, int, int]]:
    """What ranks have noted down: time, step, rank, size, local rank."""
    lines = [line for file in folder.glob("rank.*") for line in file.read_text().splitlines()]
    rows = [tuple(map(float, line.split())) for line in lines]
    return sorted((row[0], *map(int, row[1:])) for row in rows)  # type: ignore[misc]


def test_a_lost_executor_is_replaced_and_no_step_is_lost(spark: Any, tmp_path: Path) -> None:
    given = corro.spark.run_elastic(
        functions.train_elastically, args=(str(tmp_path), 40, 10, 3), num_proc=3, min_num_proc=2
    )
    assert [rank for rank, _, _ in given] == [0, 1, 2]
    assert {size for _, size, _ in given} == {3}
    assert len({step for _, _, step in given}) == 1
    killed = float((tmp_path / "killed").read_text())
    # Those that were left have gone on by themselves, from where they were.
    alone = [row for row in steps(tmp_path) if row[3] == 2]
    before = [row for row in steps(tmp_path) if row[0] < alone[0][0]]
    # A commit that learns of a change is interrupted after it has saved, and before the step is noted down.
    assert alone[0][1] - before[-1][1] in (1, 2)
    again = [row for row in steps(tmp_path) if row[0] > alone[0][0] and row[3] == 3]
    assert {row[4] for row in again} == {0, 1, 2}
    print(f"the others went on {alone[0][0] - killed:.1f} s after the executor was killed")
    print(f"all were there again {again[0][0] - killed:.1f} s after it")


def test_it_begins_with_fewer_slots_than_it_can_use(spark: Any, tmp_path: Path) -> None:
    given = corro.spark.run_elastic(
        functions.train_elastically, args=(str(tmp_path), 5, None, 3), num_proc=2, min_num_proc=1, max_num_proc=5
    )
    # The application has three slots.
    assert [size for _, size, _ in given] == [3, 3, 3]
