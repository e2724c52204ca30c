"""A job whose tensors are all in the memory of hosts opens nothing of CUDA, also where there is a driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from test_jobs import run_job

# The libraries that are opened at run time.
NAMES = ("libcuda.so.1", "libnccl.so.2", "libnvidia-ml.so.1")

# Says that it was opened; it can do nothing, so it is closed again.
LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void opened(void) {
    FILE *file = fopen(getenv("CORRO_TEST_OPENED"), "a");
    fprintf(file, "%d " NAME "\n", (int)getpid());
    fclose(file);
}
"""

JOB = """
import os
import torch

def opened():
    file = os.environ["CORRO_TEST_OPENED"]
    lines = open(file).read().splitlines() if os.path.exists(file) else []
    return [line.split()[1] for line in lines if line.split()[0] == str(os.getpid())]

# Some versions of torch look for a driver when they are imported.
by_torch = len(opened())
import corro.torch as hvd
from corro import _native

hvd.init()
model = torch.nn.Linear(4, 4)
hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# No backward pass: torch itself looks for a driver there.
hvd.allreduce(torch.ones(1000))
hvd.grouped_allreduce([torch.ones(3), torch.ones(4)])
hvd.allgather_object("text")
hvd.barrier()
before = opened()[by_torch:]
hvd.barrier()
_native.takes_gpu_memory()
print(f"opened {before}, then {sorted(set(opened()))}", flush=True)
"""


def test_nothing_of_cuda_is_opened_before_a_tensor_needs_it(tmp_path: Path) -> None:
    """Libraries that can do nothing stand where a driver's would be. The last line shows that they would be seen."""
    folder = tmp_path / "stand-ins"
    folder.mkdir()
    source = tmp_path / "library.c"
    source.write_text(LIBRARY)
    for name in NAMES:
        options = ["-shared", "-fPIC", f'-DNAME="{name}"', "-o", str(folder / name)]
        subprocess.run(["gcc", *options, str(source)], check=True, timeout=60)
    script = tmp_path / "job.py"
    script.write_text(JOB)
    ended = run_job(
        2, sys.executable, str(script), LD_LIBRARY_PATH=str(folder), CORRO_TEST_OPENED=str(tmp_path / "opened")
    )
    assert ended.stdout.count("opened [], then ['libcuda.so.1']") == 2, ended.stdout + ended.stderr
