#!/usr/bin/env python3
"""Runs the cases for GPUs on every rank of a job, without pytest:

    corro run -np 2 python3 python/tests/gpu/run.py [WORD]...

Without words all cases run, else those whose names contain one of them. Rank 0 says how each ended; a case has failed if it
has on any rank. Exits with 1 then, and where there is no GPU. See `gpu.py` for where tensors lie.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

# NCCL takes ranks of one GPU only if it believes them on different hosts. Before anything that reads it.
if os.environ.get("CORRO_GPU_PLANE") == "nccl":
    os.environ["NCCL_HOSTID"] = f"rank{os.environ.get('CORRO_RANK', '0')}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")

sys.path.insert(0, str(Path(__file__).resolve().parent))
MODULES = (
    "cases_ops",
    "cases_scaling",
    "cases_memory",
    "cases_training",
    "cases_overlap",
    "cases_refusals",
    "cases_embedding",
)


def main() -> int:
    import torch
    from each import run_all
    from gpu import DEVICE, ON_GPU, PLANE

    import corro.torch as hvd

    if ON_GPU and not torch.cuda.is_available():
        print("python/tests/gpu: FAILED: there is no GPU here", flush=True)
        return 1
    hvd.init()
    modules = [importlib.import_module(name) for name in MODULES]
    where = f"{DEVICE}, plane {PLANE or 'by itself'}"
    return 0 if run_all(modules, sys.argv[1:], hvd, where) else 1


if __name__ == "__main__":
    sys.exit(main())
