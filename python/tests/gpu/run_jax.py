#!/usr/bin/env python3
"""Runs the cases for JAX on GPUs on every rank of a job:

    corro run -np 2 python3 python/tests/gpu/run_jax.py [WORD]...

As `run.py` does for torch. `CORRO_TEST_DEVICE=cpu` runs the same cases without a GPU, to see whether the cases themselves
are right.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ON_GPU = os.environ.get("CORRO_TEST_DEVICE", "cuda") != "cpu"
os.environ["JAX_PLATFORMS"] = "cuda,cpu" if ON_GPU else "cpu"
# Ranks share a GPU; JAX would take three quarters of its memory for each.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
if os.environ.get("CORRO_GPU_PLANE") == "nccl":
    # NCCL takes ranks of one GPU only if it believes them on different hosts. Before anything that reads it.
    os.environ["NCCL_HOSTID"] = f"rank{os.environ.get('CORRO_RANK', '0')}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
sys.path.insert(0, str(Path(__file__).resolve().parent))


def main() -> int:
    import jax
    from each import run_all

    import corro.jax as hvd

    device = jax.devices()[0]
    if ON_GPU and device.platform != "gpu":
        print("python/tests/gpu: FAILED: JAX finds no GPU here", flush=True)
        return 1
    hvd.init()
    import cases_jax

    plane = os.environ.get("CORRO_GPU_PLANE") or "by itself"
    return 0 if run_all([cases_jax], sys.argv[1:], hvd, f"{device}, plane {plane}, JAX {jax.__version__}") else 1


if __name__ == "__main__":
    sys.exit(main())
