#!/usr/bin/env python3
"""What it costs a training step that gradients are final when `backward()` returns, and that drift of the ranks is noticed.

    corro run -np 2 python bench/trust.py [--rounds 40]

In one job, and in turns of a few steps: steps as they are; steps whose gradients are waited for in `optimizer.step()` (as Horovod does,
and with it any clipping before the step is wrong); steps without checks. Rank 0 prints, for each model, the time of a step and the
ratios to the first, as medians over rounds: each round is a pair under the same conditions.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
# As many as there are between two checks, so that each turn has one.
STEPS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()

    import torch
    from torch.nn.functional import cross_entropy
    from training import models

    import corro.torch as hvd
    from corro._front.checks import Watch
    from corro.torch._reducer import Reducer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hvd.init()
    ways = {
        "as it is": contextlib.nullcontext(),
        "waits in step()": mock.patch.object(Reducer, "_finish_with_backward", lambda self: None),
        "no checks": mock.patch.object(Watch, "wanted", property(lambda self: False)),
    }
    for name, (model, x, y) in models(torch).items():
        # Each rank its own data.
        x = x.roll(hvd.rank(), 0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.001), model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

        def turn(model=model, optimizer=optimizer, x=x, y=y) -> float:
            hvd.barrier()
            start = time.perf_counter()
            for _ in range(STEPS):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
            return (time.perf_counter() - start) / STEPS

        turn()
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(options.rounds):
            order = list(ways) if number % 2 else list(reversed(ways))
            for way in order:
                with ways[way]:
                    times[way].append(turn())
        if hvd.rank() == 0:
            usual = times["as it is"]
            print(f"{name}: {statistics.median(usual) * 1e3:.3f} ms a step; as it is, against", flush=True)
            for way in list(ways)[1:]:
                ratios = sorted(a / b for a, b in zip(usual, times[way], strict=True))
                low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
                print(
                    f"    {way}: {statistics.median(ratios):.4f} (half of {len(ratios)} pairs: {low:.3f} to {high:.3f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
