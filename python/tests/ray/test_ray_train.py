"""Ray Train and Tune with Corro in their workers, on a real Ray of two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train
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


def add_up(config: dict[str, Any]) -> None:
    import numpy as np

    import corro.numpy as hvd

    hvd.init()
    context = ray.train.get_context()
    total = hvd.allreduce(np.full(4, hvd.rank() + 1.0), op=hvd.Sum, name="x")
    seat = (hvd.rank(), hvd.local_rank(), hvd.cross_rank(), hvd.size(), hvd.local_size(), hvd.cross_size())
    theirs = (context.get_world_rank(), context.get_local_rank(), context.get_node_rank(), context.get_world_size())
    Path(config["folder"], f"rank{hvd.rank()}").write_text(f"{float(total[0])} {seat} {theirs[:4]}")
    ray.train.report({"total": float(total[0])})
    hvd.shutdown()


def die_the_first_time(config: dict[str, Any]) -> None:
    import numpy as np

    import corro.numpy as hvd

    hvd.init()
    note = Path(config["folder"], "died")
    hvd.allreduce(np.ones(1), name="begin")
    if hvd.rank() == 1 and not note.exists():
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    total = hvd.allreduce(np.ones(1), op=hvd.Sum, name="x")
    ray.train.report({"total": float(total[0])})
    hvd.shutdown()


def test_workers_of_a_trainer_are_ranks(ray_cluster: Any, tmp_path: Path) -> None:
    result = fit(add_up, {"folder": str(tmp_path)}, tmp_path)
    assert result.metrics["total"] == 3.0
    told = [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)]
    # Corro's ranks are Ray Train's, on two nodes with a worker each.
    assert told == ["3.0 (0, 0, 0, 2, 1, 2) (0, 0, 0, 2)", "3.0 (1, 0, 1, 2, 1, 2) (1, 0, 1, 2)"]


def test_workers_that_are_started_again_meet_again(ray_cluster: Any, tmp_path: Path) -> None:
    result = fit(die_the_first_time, {"folder": str(tmp_path)}, tmp_path, failure_config=FailureConfig(max_failures=1))
    assert (tmp_path / "died").exists()
    assert result.metrics["total"] == 2.0


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
