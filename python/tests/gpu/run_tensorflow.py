#!/usr/bin/env python3
"""Runs the cases for TensorFlow on GPUs on every rank of a job:

    corro run -np 2 python3 python/tests/gpu/run_tensorflow.py [WORD]...

As `run.py` does for torch. `CORRO_TEST_DEVICE=cpu` runs the same cases without a GPU, to see whether the cases themselves
are right.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ON_GPU = os.environ.get("CORRO_TEST_DEVICE", "cuda") != "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))


def main() -> int:
    import tensorflow as tf
    from each import run_all

    import corro.tensorflow as hvd

    found = tf.config.list_physical_devices("GPU") if ON_GPU else []
    if ON_GPU and not found:
        print("python/tests/gpu: FAILED: TensorFlow finds no GPU here", flush=True)
        return 1
    for gpu in found:
        # Ranks share a GPU; TensorFlow would take all its memory for each.
        tf.config.experimental.set_memory_growth(gpu, True)
    # What has no kernel for the GPU is to fail, not to move to the CPU.
    tf.config.set_soft_device_placement(False)
    hvd.init()
    import cases_tensorflow

    where = f"{found[0].name if found else 'the CPU'}, TensorFlow {tf.__version__}"
    return 0 if run_all([cases_tensorflow], sys.argv[1:], hvd, where) else 1


if __name__ == "__main__":
    sys.exit(main())
