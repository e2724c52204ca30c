"""Trains a small model on handwritten digits in actors of Ray; with --elastic, on as many as come and go.

    python examples/ray/executor_digits.py --workers 2

Uses the cluster of RAY_ADDRESS, or one of its own.
"""

from __future__ import annotations

import argparse
from typing import Any

import ray

from corro.ray import RayExecutor, ray_logger


def train(epochs: int) -> float:
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
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        loss = torch.zeros(())
        while state.epoch < epochs:
            # The last 297 are for the test; of the others each rank takes its share.
            for batch in torch.arange(1500)[hvd.rank() :: hvd.size()].split(64):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                optimizer.step()
            state.epoch += 1
            if hvd.rank() == 0:
                ray_logger.log({"epoch": state.epoch, "workers": hvd.size(), "loss": loss.item()})
            state.commit()

    loop(state)
    with torch.no_grad():
        right = model(images[1500:]).argmax(1) == labels[1500:]
    return float(right.float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--elastic", action="store_true", help="go on when workers are lost, and use nodes that come")
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    options = parser.parse_args()
    ray.init()
    many: dict[str, Any] = (
        {"min_workers": 1, "max_workers": options.workers} if options.elastic else {"num_workers": options.workers}
    )
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), **many)
    executor.start()
    accuracies = executor.run(train, args=[5 if options.quick else 20], callbacks=[print])
    print(f"ranks {len(accuracies)}   test accuracy {accuracies[0]:.2%}")
    executor.shutdown()


if __name__ == "__main__":
    main()
