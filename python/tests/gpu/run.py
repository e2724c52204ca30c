#!/usr/bin/env python3
"""Runs the cases for GPUs on every rank of a job, without pytest: `corro run -np 2 python3 python/tests/gpu/run.py [WORD]...`

Without words all cases run, else those whose names contain one of them. Rank 0 says how each ended; a case has failed if it
has on any rank. Exits with 1 then, and where there is no GPU. See `gpu.py` for where tensors lie.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
import time
import traceback
from pathlib import Path

# NCCL takes ranks of one GPU only if it believes them on different hosts. Before anything that reads it.
if os.environ.get("CORRO_GPU_PLANE") == "nccl":
    os.environ["NCCL_HOSTID"] = f"rank{os.environ.get('CORRO_RANK', '0')}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")

sys.path.insert(0, str(Path(__file__).resolve().parent))
MODULES = ("cases_ops", "cases_scaling", "cases_memory", "cases_training", "cases_refusals")
# A case that takes longer hangs.
LIMIT = 120


def run_case(case, arguments) -> str:
    """Why it has failed here; empty if it has not."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    try:
        case(**arguments)
    except Exception:
        return traceback.format_exc(limit=-6)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return ""


def main() -> int:
    import torch

    import corro.torch as hvd
    from gpu import DEVICE, ON_GPU, PLANE, combinations

    if ON_GPU and not torch.cuda.is_available():
        print("python/tests/gpu: FAILED: there is no GPU here", flush=True)
        return 1
    hvd.init()
    first = hvd.rank() == 0
    failed, passed, start = [], 0, time.monotonic()
    for name in MODULES:
        module = importlib.import_module(name)
        for case in [value for key, value in vars(module).items() if key.startswith("test_")]:
            for arguments in combinations(case):
                title = f"{name}.{case.__name__}" + "".join(f" {key}={value}" for key, value in arguments.items())
                if sys.argv[1:] and not any(word in title for word in sys.argv[1:]):
                    continue
                reason = run_case(case, arguments)
                if reason:
                    print(f"FAILED {title} on rank {hvd.rank()}:\n{reason}", flush=True)
                # If the job itself has failed this raises, and the launcher shows why.
                reasons = hvd.allgather_object(reason, name=f"verdict/{title}")
                if any(reasons):
                    failed.append(title)
                else:
                    passed += 1
    hvd.shutdown()
    if first:
        took = time.monotonic() - start
        for title in failed:
            print(f"FAILED {title}")
        verdict = "FAILED" if failed or not passed else "passed"
        where = f"{len(reasons)} ranks on {DEVICE}, plane {PLANE or 'by itself'}"
        print(f"python/tests/gpu: {verdict}: {passed} cases right, {len(failed)} wrong, {where}, {took:.1f} s", flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
