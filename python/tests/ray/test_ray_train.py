"""Ray Train and Tune with Corro in their workers, on a real Ray of two nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray_functions as functions
from ray.train import FailureConfig, RunConfig, ScalingConfig

from corro.ray.train import CorroTrainer

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "ray"
pytestmark = pytest.mark.timeout(300)


def fit(loop: Any, config: dict[str, Any], folder: Path, **more: Any) -> Any:
    trainer = CorroTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        run_config=RunConfig(storage_path=str(folder), **more),
    )
    return trainer.fit()


def test_workers_of_a_trainer_are_ranks(ray_cluster: Any, tmp_path: Path) -> None:
    fit(functions.train_and_tell, {"folder": str(tmp_path)}, tmp_path)
    told = [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)]
    # Corro's ranks are Ray Train's, on two nodes with a worker each. (Ray Train tells nodes apart by address, and these two
    # have the same; so its local ranks are others here, and only here.)
    assert told == ["3.0 (0, 0, 0, 2, 1, 2) (0, 2)", "3.0 (1, 0, 1, 2, 1, 2) (1, 2)"]


def test_workers_that_are_started_again_meet_again(ray_cluster: Any, tmp_path: Path) -> None:
    again = FailureConfig(max_failures=1)
    fit(functions.train_and_die_once, {"folder": str(tmp_path)}, tmp_path, failure_config=again)
    assert (tmp_path / "died").exists()
    assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == ["2.0", "2.0"]


@pytest.mark.parametrize("example", sorted(file.name for file in EXAMPLES.glob("*.py")))
def test_examples(ray_cluster: Any, tmp_path: Path, example: str) -> None:
    surroundings = {**os.environ, "RAY_ADDRESS": ray_cluster.address, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), "--quick"],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=280,
    )
    print(done.stdout)
    assert done.returncode == 0
    assert "accuracy" in done.stdout


def test_there_are_examples() -> None:
    assert len(list(EXAMPLES.glob("*.py"))) >= 3
