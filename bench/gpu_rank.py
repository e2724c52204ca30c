"""One rank of one contestant of `gpu.py`: does what it is told over a socket, and says how long it took.

Never decides anything: which sizes, how often and who is next is `gpu.py`'s business. Between commands it sleeps in a read.
"""

from __future__ import annotations

import os
import sys
import time

CONTESTANT, SOCKET, DEVICE, MEETING = sys.argv[1:5]
RANK, SIZE = int(os.environ["CORRO_RANK"]), int(os.environ["CORRO_SIZE"])
if CONTESTANT.endswith("nccl"):
    # NCCL takes ranks of one GPU only if it believes them on different hosts. Before anything that reads it.
    os.environ["NCCL_HOSTID"] = f"rank{RANK}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"

import torch  # noqa: E402
from gpu_line import serve  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

ON_GPU = DEVICE.startswith("cuda")
IS_CORRO = CONTESTANT.startswith("corro")
if IS_CORRO:
    import corro.torch as hvd
else:
    import torch.distributed as dist


def wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def start() -> None:
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
        torch.ones(1, device=DEVICE)
    else:
        torch.set_num_threads(1)
    if IS_CORRO:
        hvd.init()
    else:
        dist.init_process_group(CONTESTANT, init_method=f"file://{MEETING}", rank=RANK, world_size=SIZE)


def allreduce(x: torch.Tensor) -> None:
    if IS_CORRO:
        hvd.allreduce_(x, op=hvd.Sum, name=f"bench{x.numel()}")
    else:
        dist.all_reduce(x)


BUFFERS: dict[int, torch.Tensor] = {}


def buffer(size: int) -> torch.Tensor:
    """Of so many bytes; the first allreduce of it is checked."""
    if size not in BUFFERS:
        BUFFERS.clear()
        x = torch.full((size // 4,), float(RANK + 1), device=DEVICE)
        allreduce(x)
        wanted = SIZE * (SIZE + 1) / 2
        if float(x.min()) != wanted or float(x.max()) != wanted:
            raise RuntimeError(f"the sum of {size} bytes is wrong: {float(x.min())} to {float(x.max())}, not {wanted}")
        BUFFERS[size] = x.zero_()
    return BUFFERS[size]


def measure(size: int, times: int) -> dict:
    """Microseconds: of each call whose result was waited for, and of a call among many in a row."""
    x = buffer(size)
    allreduce(x)
    wait()
    alone = []
    for _ in range(times):
        begin = time.perf_counter()
        allreduce(x)
        wait()
        alone.append((time.perf_counter() - begin) * 1e6)
    begin = time.perf_counter()
    for _ in range(times):
        allreduce(x)
    wait()
    return {"alone": alone, "row": (time.perf_counter() - begin) * 1e6 / times}


class Transformer(nn.Module):
    """12 layers of 768: 102 million parameters."""

    def __init__(self, layers: int = 12, width: int = 768, words: int = 22_000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x):
        # The output's weights are the embedding's.
        return self.layers(self.embedding(x)).mean(1) @ self.embedding.weight[:1000].t()


def model(name: str):
    torch.manual_seed(0)
    labels = torch.randint(0, 1000, (16,), device=DEVICE)
    if name == "transformer":
        net = Transformer() if ON_GPU else Transformer(1, 96, 1000)
        return net.to(DEVICE), torch.randint(0, 1000, (16, 64), device=DEVICE), labels
    import torchvision

    return torchvision.models.resnet50().to(DEVICE), torch.randn(16, 3, 224, 224, device=DEVICE), labels


STEPS: dict[tuple[str, bool], object] = {}


def step_of(name: str, communicates: bool):
    if (name, communicates) not in STEPS:
        # One model at a time: memory is shared with the other contestants.
        for key in [key for key in STEPS if key[0] != name]:
            del STEPS[key]
        net, x, labels = model(name)
        called, optimizer = net, torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
        if communicates and IS_CORRO:
            optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
        elif communicates:
            called = nn.parallel.DistributedDataParallel(net, device_ids=[0] if ON_GPU else None)

        def step() -> None:
            optimizer.zero_grad()
            cross_entropy(called(x), labels).backward()
            optimizer.step()

        step.parameters = sum(p.numel() for p in net.parameters())
        STEPS[name, communicates] = step
    return STEPS[name, communicates]


def train(name: str, communicates: bool, times: int) -> dict:
    step = step_of(name, communicates)
    for _ in range(3):
        step()
    wait()
    begin = time.perf_counter()
    for _ in range(times):
        step()
    wait()
    return {"ms": (time.perf_counter() - begin) * 1e3 / times, "parameters": step.parameters}


def main() -> None:
    start()
    serve(
        SOCKET,
        allreduce=lambda asked: measure(asked["bytes"], asked["times"]),
        train=lambda asked: train(asked["model"], asked["communicates"], asked["times"]),
    )
    if IS_CORRO:
        hvd.shutdown()
    else:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
