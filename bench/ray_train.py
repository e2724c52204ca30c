#!/usr/bin/env python3
"""A training step by Ray Train: `CorroTrainer` beside Ray's own `TorchTrainer` on Gloo: bench/ray_train.py [--steps 60] [--width 512]

Two workers on two nodes of this machine, one thread each, the same model (a perceptron of three layers) and data; both in turn,
`--rounds` times. A step is forward, backward, the gradients' average and the update; the median of all but the first ten
counts, as rank 0 sees it. Both must come to the same weights.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16))
os.environ.update(RAY_agent_register_timeout_ms="120000", RAY_USAGE_STATS_ENABLED="0")

import ray
import ray.train
from ray.cluster_utils import Cluster
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from corro.ray.train import CorroTrainer

NODE = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}
WARM_UP = 10


def loop(config: dict[str, Any]) -> None:
    import time

    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = config["width"]
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()]
    model: torch.nn.Module = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.01)
    rank = ray.train.get_context().get_world_rank()
    if config["by"] == "corro":
        import corro.torch as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(1 + rank)
    images, labels = torch.randn(64, width), torch.randint(10, (64,))
    seconds = []
    for _ in range(config["steps"]):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds[WARM_UP:])
    weights = sum(float(weight.detach().double().sum()) for weight in model.parameters())
    if rank == 0:
        Path(config["folder"], "told").write_text(json.dumps({"median": median, "weights": weights}))
    if config["by"] == "corro":
        hvd.shutdown()


def fit(by: str, options: argparse.Namespace, folder: str) -> dict[str, float]:
    shared = {
        "train_loop_config": {"by": by, "steps": options.steps, "width": options.width, "folder": folder},
        "scaling_config": ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        "run_config": RunConfig(storage_path=folder),
    }
    if by == "corro":
        CorroTrainer(loop, **shared).fit()
    else:
        TorchTrainer(loop, torch_config=TorchConfig(backend="gloo"), **shared).fit()
    # Ray Train's second version keeps no metrics of runs without checkpoints.
    told: dict[str, float] = json.loads(Path(folder, "told").read_text())
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    found: dict[str, list[dict[str, float]]] = {"gloo": [], "corro": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for by, rounds in found.items():
                rounds.append(fit(by, options, folder))
                print(json.dumps({"round": number, "by": by, "ms": round(1000 * rounds[-1]["median"], 2)}), flush=True)
    weights = {by: rounds[0]["weights"] for by, rounds in found.items()}
    assert abs(weights["gloo"] - weights["corro"]) < 1e-3 * abs(weights["gloo"]), (
        f"they have not learned the same: {weights}"
    )
    medians = {by: round(1000 * statistics.median(one["median"] for one in rounds), 2) for by, rounds in found.items()}
    print(json.dumps({"width": options.width, "ms a step": medians, "load": os.getloadavg()[0]}))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
