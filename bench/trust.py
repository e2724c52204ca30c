#!/usr/bin/env python3
"""What it costs a training step that gradients are final when `backward()` returns, that drift of the ranks is noticed, and that the
launcher has chosen the number of threads.

    corro run -np 2 python bench/trust.py [--steps 600]

In one job, steps take turns one by one, in a random order that all ranks share: as they are, and with gradients that are waited for in
`optimizer.step()` (as Horovod does; any clipping between is wrong then). So both see the same machine, and medians over hundreds of steps
tell one percent. Numbers of threads take turns as well, in rounds of 10 steps. Checks look at one step in 256: the time that their
code takes is measured itself, and given as a share of all steps.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))


class Stopwatch:
    """Adds up the time that a function takes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function):
        def timed(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()

    import torch
    from torch.nn.functional import cross_entropy
    from training import models

    import corro.torch as hvd
    from corro._front.checks import Watch
    from corro.torch._reducer import Reducer

    torch.manual_seed(0)
    hvd.init()
    chosen = torch.get_num_threads()
    numbers = sorted({1, chosen, os.cpu_count() or 1})
    late = mock.patch.object(Reducer, "_finish_with_backward", lambda self: None)
    ways = {"as it is": contextlib.nullcontext(), "waits in step()": late}
    for name, (model, x, y) in models(torch).items():
        # Each rank its own data.
        x = x.roll(hvd.rank(), 0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.001), model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

        def step(model=model, optimizer=optimizer, x=x, y=y) -> float:
            start = time.perf_counter()
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            return time.perf_counter() - start

        for _ in range(20):
            step()
        times: dict[str, list[float]] = {way: [] for way in ways}
        watch = Stopwatch()
        turns = random.Random(7)
        with (
            mock.patch.object(Reducer, "_new_facts", watch.around(Reducer._new_facts)),
            mock.patch.object(Reducer, "_new_rider", watch.around(Reducer._new_rider)),
            mock.patch.object(Watch, "next_round", watch.around(Watch.next_round)),
        ):
            for _ in range(options.steps):
                for way in turns.sample(list(ways), len(ways)):
                    with ways[way]:
                        times[way].append(step())
        if hvd.rank() == 0:
            medians = [statistics.median(times[way]) for way in ways]
            share = watch.seconds / sum(sum(some) for some in times.values())
            print(
                f"{name}: {medians[0] * 1e3:.3f} ms a step, {medians[0] / medians[1]:.4f} of one that waits in step();",
                end=" ",
            )
            print(f"checks take {share:.4%} of the time", flush=True)
        by_threads: dict[int, list[float]] = {number: [] for number in numbers}
        for _ in range(options.steps // 10):
            for number in turns.sample(numbers, len(numbers)):
                torch.set_num_threads(number)
                # The first of a round wakes or ends threads.
                by_threads[number] += [step() for _ in range(11)][1:]
        torch.set_num_threads(chosen)
        if hvd.rank() == 0:
            medians = {number: statistics.median(some) for number, some in by_threads.items()}
            figures = ", ".join(f"{number}: {median * 1e3:.3f} ms" for number, median in medians.items())
            ratio = medians[chosen] / min(medians.values())
            print(f"  threads: {chosen} chosen by the launcher, {ratio:.3f} of the best ({figures})", flush=True)


if __name__ == "__main__":
    main()
