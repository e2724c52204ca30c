"""Looks for a learning rate with Ray Tune; each trial trains on two ranks of Corro.

python examples/ray/tune_digits.py
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import ray
from ray import tune

from corro.ray import RayExecutor

WORKERS = 2


def train(rate: float, epochs: int) -> float:
    import torch
    from sklearn.datasets import load_digits

    import corro.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(epochs):
        for batch in torch.arange(1500)[hvd.rank() :: hvd.size()].split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    hvd.shutdown()
    with torch.no_grad():
        right = model(images[1500:]).argmax(1) == labels[1500:]
    return float(right.float().mean())


def trial(config: dict[str, Any]) -> None:
    # Its workers are placed in the bundles that Tune has reserved for this trial.
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=WORKERS)
    executor.start()
    accuracies = executor.run(train, args=[config["rate"], config["epochs"]])
    executor.shutdown()
    tune.report({"accuracy": accuracies[0]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two trials of a few epochs only")
    options = parser.parse_args()
    ray.init()
    rates = [0.01, 0.3] if options.quick else [0.001, 0.01, 0.1, 0.3, 1.0]
    # Nothing for the trial itself, which only waits, and a bundle for each worker.
    bundles: list[dict[str, float]] = [{}, *[{"CPU": 1.0} for _ in range(WORKERS)]]
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            tune.with_resources(trial, tune.PlacementGroupFactory(bundles)),
            param_space={"rate": tune.grid_search(rates), "epochs": 5 if options.quick else 20},
            run_config=tune.RunConfig(storage_path=folder),
        )
        best = tuner.fit().get_best_result("accuracy", "max")
    assert best.metrics is not None
    assert best.config is not None
    print(f"ranks {WORKERS}   rate {best.config['rate']}   test accuracy {best.metrics['accuracy']:.2%}")


if __name__ == "__main__":
    main()
