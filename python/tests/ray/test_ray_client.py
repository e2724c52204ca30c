"""A program outside of the cluster, which talks to it through Ray Client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import sys

import ray
import ray_functions as functions

from corro.ray import ElasticRayExecutor, RayExecutor

ray.init(sys.argv[1])
assert ray.util.client.ray.is_connected()
job = RayExecutor(RayExecutor.create_settings(), num_workers=2)
job.start()
print("fixed", [(told["rank"], told["sum"]) for told in job.run(functions.add_up)])
try:
    job.run(functions.fail_on, args=[1])
except ValueError as error:
    print("failed", "rank 1 of 2" in str(error))
job.shutdown()
job = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2))
job.start()
print("elastic", [told["rank"] for told in job.run(functions.tell_surroundings)])
"""


def test_a_program_outside_of_the_cluster(ray_cluster: Any, tmp_path: Path, client_address: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script), client_address],
        env={**os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=280,
    )
    print(done.stdout)
    assert done.returncode == 0
    for line in ("fixed [(0, 1.0), (1, 1.0)]", "failed True", "elastic [0, 1]"):
        assert line in done.stdout
