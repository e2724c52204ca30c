"""Trains a small CNN on scikit-learn's handwritten digits, on as many ranks as it is started with.

    corro run -np 2 python examples/torch/digits.py

The five lines that make it distributed are marked. The test accuracy is at least 97 % on 1, 2 and 4 ranks.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

import corro.torch as hvd


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.hidden = nn.Linear(64 * 4 * 4, 64)
        self.output = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.hidden(x.flatten(1)))
        logits: torch.Tensor = self.output(F.dropout(x, 0.25, self.training))
        return logits


def digits() -> tuple[TensorDataset, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images.reshape(-1, 1, 8, 8) / 16, labels, test_size=0.2, random_state=0, stratify=labels)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in parts)
    return TensorDataset(train_x.float(), train_y), TensorDataset(test_x.float(), test_y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()

    hvd.init()  # 1: join the job
    torch.manual_seed(1 + hvd.rank())
    torch.set_num_threads(1)
    train, test = digits()
    # 2: each rank its own samples
    sampler: DistributedSampler[Any] = DistributedSampler(train, hvd.size(), hvd.rank(), seed=0)
    loader = DataLoader(train, options.batch_size // hvd.size(), sampler=sampler)

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # 3: gradients are averaged
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 4: start from the same weights
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    start = time.perf_counter()
    progress = tqdm(range(options.epochs), desc="training", unit="epoch", disable=hvd.rank() != 0)
    loss = torch.tensor(0.0)
    for epoch in progress:
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        schedule.step()
        progress.set_postfix(loss=f"{loss.item():.3f}")
    seconds = time.perf_counter() - start

    accuracy = hvd.allreduce(torch.tensor(test_accuracy(model, test)), name="accuracy").item()  # 5: over all ranks
    if hvd.rank() == 0:
        images_per_second = options.epochs * len(train) / seconds
        print(f"ranks {hvd.size()}   test accuracy {accuracy:.2%}   {images_per_second:,.0f} images/s", flush=True)


def test_accuracy(model: nn.Module, test: TensorDataset) -> float:
    model.eval()
    images, labels = test.tensors
    with torch.no_grad():
        right: torch.Tensor = model(images).argmax(1) == labels
    return right.float().mean().item()


if __name__ == "__main__":
    main()
