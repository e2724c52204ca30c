"""Trains a small model on handwritten digits by Ray Train, with Corro between its workers.

    python examples/ray/train_digits.py --workers 2

The line that differs from a script for Ray's own `TorchTrainer` is marked.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import ray.train
from ray.train import RunConfig, ScalingConfig

from corro.ray.train import CorroTrainer


def train(config: dict[str, Any]) -> None:
    import torch
    from sklearn.datasets import load_digits

    import corro.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    accuracy = 0.0
    for _ in range(config["epochs"]):
        # The last 297 are for the test; of the others each rank takes its share.
        for batch in torch.arange(1500)[hvd.rank() :: hvd.size()].split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            right = model(images[1500:]).argmax(1) == labels[1500:]
        accuracy = float(right.float().mean())
        ray.train.report({"accuracy": accuracy})
    if hvd.rank() == 0:
        print(f"ranks {hvd.size()}   test accuracy {accuracy:.2%}", flush=True)
    hvd.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer = CorroTrainer(  # workers are ranks
            train,
            train_loop_config={"epochs": 5 if options.quick else 20},
            scaling_config=ScalingConfig(num_workers=options.workers),
            run_config=RunConfig(storage_path=folder),
        )
        trainer.fit()


if __name__ == "__main__":
    main()
