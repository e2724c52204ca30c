"""How many images per second a small residual network trains on random images.

corro run -np 2 python examples/torch/synthetic_benchmark.py
"""

from __future__ import annotations

import measuring
import torch
from torch import nn
from torch.nn import functional as F

import corro.torch as hvd


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.around(x))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, 4, 3),
        *(Block(inputs, outputs, 2) for inputs, outputs in ((32, 64), (64, 128), (128, 256))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 1000),
    )


def main() -> None:
    chosen = measuring.options(__doc__, batch_size=16)
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = network()
    optimizer = measuring.distributed(model, torch.optim.SGD(model.parameters(), 0.01), chosen.fp16)
    images = torch.randn(chosen.batch_size, 3, 224, 224)
    labels = torch.randint(0, 1000, (chosen.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    measuring.measure(step, chosen)


if __name__ == "__main__":
    main()
