#!/usr/bin/env python3
"""What communication adds to a training step: Corro beside torch's DDP over Gloo and beside none, in one run.

    python bench/training.py [--ranks 2]

Three models, one thread a rank. The ranks are this same script, started by `corro run`; the ways take turns in short
rounds, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from python_ops import start_store  # noqa: E402

ROUNDS = 7
# Without communication; with nothing but a barrier after each step, which is what waiting for the slower rank costs
# whoever communicates; Corro; Corro with CORRO_SHARED_GRADIENTS=1; DDP.
WAYS = ("none", "wait", "corro", "shared", "ddp")


def models(torch):
    """Name: (model, input, target)."""
    from torch import nn

    mlp = nn.Sequential(*(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)))
    cnn = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, 10)),
    )

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 128)
            layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.output = nn.Linear(128, 10)

        def forward(self, x):
            return self.output(self.layers(self.embedding(x)).mean(1))

    labels = torch.randint(0, 10, (64,))
    return {
        "MLP 784-2048-2048-10, batch 64": (mlp, torch.randn(64, 784), labels),
        "CNN, 3 convolutions, batch 64": (cnn, torch.randn(64, 3, 32, 32), labels),
        "transformer, 4 layers of 128, batch 16": (Transformer(), torch.randint(0, 1000, (16, 32)), labels[:16]),
    }


def ranks_part(result: Path) -> None:
    import copy

    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    import corro.torch as hvd

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hvd.init()
    dist.init_process_group("gloo", store=start_store(hvd, dist), rank=hvd.rank(), world_size=hvd.size())

    def step_of(way: str, model, x, y):
        model = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        called = model
        if way == "corro":
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        elif way == "shared":
            os.environ["CORRO_SHARED_GRADIENTS"] = "1"
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            del os.environ["CORRO_SHARED_GRADIENTS"]
        elif way == "ddp":
            called = torch.nn.parallel.DistributedDataParallel(model)

        def step() -> None:
            optimizer.zero_grad()
            cross_entropy(called(x), y).backward()
            optimizer.step()
            if way == "wait":
                hvd.barrier()

        return step

    times = {}
    for name, (model, x, y) in models(torch).items():
        steps = {way: step_of(way, model, x, y) for way in WAYS}
        rounds = {way: [] for way in steps}
        for round_number in range(ROUNDS + 1):
            for way, step in steps.items():
                for _ in range(3):
                    step()
                hvd.barrier()
                start = time.perf_counter()
                for _ in range(10):
                    step()
                if round_number:  # the first round warms up
                    rounds[way].append((time.perf_counter() - start) / 10 * 1e3)
        times[name] = rounds
    if hvd.rank() == 0:
        result.write_text(json.dumps(times))
    hvd.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.result:
        ranks_part(options.result)
        return

    from corro._command import program

    result = Path(tempfile.gettempdir(), f"corro-training-{os.getpid()}.json")
    command = [program(), "run", "-np", str(options.ranks), sys.executable, __file__, "--result", str(result)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, env=environment, check=True, timeout=600)
    times = json.loads(result.read_text())
    result.unlink()

    print(f"\n{options.ranks} ranks, one thread each; milliseconds a step, median of {ROUNDS} rounds\n")
    print(f"{'':42s} {'alone':>8s}   what is added by {'waiting':>8s} {'corro':>8s} {'shared':>8s} {'ddp':>8s}   corro / ddp")
    for name, rounds in times.items():
        none = statistics.median(rounds["none"])
        # Rounds are compared with their neighbours: the machine may change from one to the next.
        added = {
            way: statistics.median(time - alone for time, alone in zip(rounds[way], rounds["none"], strict=True))
            for way in WAYS[1:]
        }
        columns = " ".join(f"{added[way]:8.1f}" for way in WAYS[1:])
        print(f"{name:42s} {none:8.1f}                    {columns}   {added['corro'] / added['ddp']:11.2f}")


if __name__ == "__main__":
    main()
