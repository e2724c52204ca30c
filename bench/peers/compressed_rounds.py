"""One rank of compression.py: allreduces of a model's gradients by each way, in alternating rounds. Rank 0 prints the seconds."""

from __future__ import annotations

import json
import random
import sys
import time

import numpy as np

import corro
from corro import _native
from corro._front.auto_compression import Auto
from corro._front.engine_compression import Methods

# 25 million parameters: matrices, and some vectors beside them.
SHAPES = [(1024, 1024)] * 23 + [(1024, 256)] * 3 + [(1024,)] * 48
FLOAT32, CPU, SUM = 7, -1, 1


def main() -> None:
    ways, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
    corro.init()
    source = np.random.default_rng(corro.rank())
    gradients = [source.standard_normal(shape, dtype=np.float32) for shape in SHAPES]
    results = [np.empty_like(one) for one in gradients]
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    auto = Methods.auto()
    # The first round is not counted: memory is new, and connections are cold.
    for number in range(rounds + 1):
        # In another order each time, the same on all ranks: what ran before leaves caches and queues in its own state.
        for way in random.Random(number).sample(ways, len(ways)):
            _native.barrier(0)
            began = time.perf_counter()
            allreduce(gradients, results, way, auto)
            _native.barrier(0)
            if number:
                seconds[way].append(time.perf_counter() - began)
    if corro.rank() == 0:
        print(json.dumps({"parameters": sum(one.size for one in gradients), "seconds": seconds}))
    corro.shutdown()


def allreduce(gradients: list[np.ndarray], results: list[np.ndarray], way: str, auto: Auto) -> None:
    handles = []
    for number, (one, result) in enumerate(zip(gradients, results, strict=True)):
        views = [(array.ctypes.data, array.shape, FLOAT32, CPU) for array in (one, result)]
        name = f"{way}.{number}"
        setting = auto.setting(name, one.nbytes) if way == "auto" else None if way == "none" else way
        handles.append(_native.submit("allreduce", *views, 0, name, one, result, None, SUM, compression=setting))
    for handle in handles:
        _native.wait(handle)


if __name__ == "__main__":
    main()
