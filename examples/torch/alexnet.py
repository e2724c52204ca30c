"""AlexNet on generated images of ImageNet's shape, with the time of every iteration.

    corro run -np 2 python examples/torch/alexnet.py

61 million parameters, 244 MB of gradients in every step: more a test of communication than of arithmetic.
With a picture of the run (time per iteration, load of each rank, images per second), on smaller images:

    corro run -np 2 --record alexnet.corro python examples/torch/alexnet.py --image-size 64
    corro report alexnet.corro --html alexnet.html

The same with parameter servers in place of allreduce, in rounds or with ranks that may be ahead of others:

    corro run -np 2 python examples/torch/alexnet.py --mode ps
    corro run -np 2 python examples/torch/alexnet.py --mode ps --staleness 3
"""

from __future__ import annotations

import measuring
import torch
from torch import nn
from torch.nn import functional as F

import corro.torch as hvd

# Of AlexNet's thousand, so many are there to be seen.
CLASSES = 10


def alexnet(classes: int = 1000) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        nn.AdaptiveAvgPool2d(6),  # for images of any size; changes nothing with 224
        nn.Flatten(),
        *(nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU()),
        *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()),
        nn.Linear(4096, classes),
    )


def main() -> None:
    chosen = measuring.options(__doc__, batch_size=8, image_size=224, modes=True)
    hvd.init()
    # Every class looks different, in the same way on all ranks; which images a rank sees is its own.
    patterns = torch.randn(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(hvd.rank())
    model = alexnet()
    sgd = torch.optim.SGD(model.parameters(), 0.003, momentum=0.9)
    servers = {"mode": "ps", "staleness": chosen.staleness} if chosen.mode == "ps" else {}
    optimizer = measuring.distributed(model, sgd, chosen.fp16, **servers)

    def step() -> float:
        # New images each time, as from a data loader.
        labels = torch.randint(0, CLASSES, (chosen.batch_size,))
        images = F.interpolate(patterns[labels], chosen.image_size)
        images += torch.randn_like(images)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    measuring.measure(step, chosen, each=True)


if __name__ == "__main__":
    main()
