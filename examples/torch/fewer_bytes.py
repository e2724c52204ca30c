"""A small model trained with fewer bytes between ranks: every compression by a flag, and training that talks seldom.

    corro run -np 2 python examples/torch/fewer_bytes.py --compression "int8"
    corro run -np 2 python examples/torch/fewer_bytes.py --compression "powersgd rank=4" --task manual
    corro run -np 2 python examples/torch/fewer_bytes.py --method diloco --every 50 --fragments 4 --compression int8

Where all ranks are on one host, set CORRO_COMPRESS_INSIDE=1 to see what compression does. `--json` prints the result
for programs.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from transformer import TEXT, Writer

import corro.torch as hvd

# What Horovod has; all else is written as the engine does, as in "int8 block=128 rounding=stochastic".
CASTS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


class Digits:
    """scikit-learn's handwritten digits; every rank has images of its own."""

    def __init__(self, batch_size: int) -> None:
        images, labels = load_digits(return_X_y=True)
        x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
        self.test = x[::5], y[::5]
        mine = [i for i in range(len(x)) if i % 5 and (i // 5) % hvd.size() == hvd.rank()]
        self.x, self.y, self.batch_size = x[mine], y[mine], batch_size

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))

    def loss(self, model: nn.Module) -> torch.Tensor:
        batch = torch.randint(len(self.x), (self.batch_size,))
        return F.cross_entropy(model(self.x[batch]), self.y[batch])

    def test_loss(self, model: nn.Module) -> float:
        return F.cross_entropy(model(self.test[0]), self.test[1]).item()


class Letters:
    """The transformer of `transformer.py` learns a text letter by letter; every rank draws its own passages."""

    context = 64

    def __init__(self, batch_size: int, text: str, held_out: float) -> None:
        """The last part of the text, `held_out` of it, is for the test; with 0 all of it is for both."""
        self.letters = sorted(set(text))
        number = {letter: i for i, letter in enumerate(self.letters)}
        data = torch.tensor([number[letter] for letter in text])
        end = round(len(data) * (1 - held_out))
        self.data, self.test = data[:end], data[end:] if held_out else data
        self.batch_size = batch_size

    def model(self) -> nn.Module:
        return Writer(len(self.letters), self.context)

    def loss(self, model: nn.Module) -> torch.Tensor:
        places = torch.randint(len(self.data) - self.context - 1, (self.batch_size,))
        return self._loss_at(model, self.data, places)

    def test_loss(self, model: nn.Module) -> float:
        places = torch.arange(0, len(self.test) - self.context - 1, self.context)
        return self._loss_at(model, self.test, places).item()

    def _loss_at(self, model: nn.Module, data: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        passages = torch.stack([data[place : place + self.context + 1] for place in places])
        return F.cross_entropy(model(passages[:, :-1]).flatten(0, 1), passages[:, 1:].flatten())


def sonnets(batch_size: int) -> Letters:
    """Few lines, to be learned by heart: the loss is that of the text it learns."""
    return Letters(batch_size, TEXT.read_text(encoding="utf-8"), held_out=0.0)


def manual(batch_size: int) -> Letters:
    """The reference of Python's language, which every Python brings; what it says twice is left out."""
    paragraphs = (paragraph.strip("\n") for _, topic in sorted(topics.items()) for paragraph in topic.split("\n\n"))
    return Letters(batch_size, "\n\n".join(dict.fromkeys(paragraphs)), held_out=0.1)


TASKS: dict[str, Callable[[int], Digits | Letters]] = {"digits": Digits, "manual": manual, "sonnets": sonnets}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument(
        "--compression", default="none", help='none, fp16, auto, or as the engine writes it: "topk density=0.01"'
    )
    parser.add_argument("--method", choices=["sync", "onebit-adam", "local-sgd", "diloco", "gossip"], default="sync")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.0, help="by default one that suits the task")
    parser.add_argument("--warmup", type=int, default=0, help="steps in which the learning rate rises from nothing")
    parser.add_argument("--decay", action="store_true", help="let the learning rate fall to nothing until the end")
    parser.add_argument("--sgd", action="store_true", help="SGD with momentum instead of Adam")
    parser.add_argument("--every", type=int, default=50, help="local SGD and DiLoCo: steps between meetings")
    parser.add_argument("--fragments", type=int, default=4, help="DiLoCo")
    parser.add_argument("--delay", type=int, default=0, help="DiLoCo: steps that a fragment may take")
    parser.add_argument("--alpha", type=float, default=0.0, help="DiLoCo: what a rank keeps of its own")
    parser.add_argument("--outer-lr", type=float, default=0.7, help="DiLoCo: of the outer optimizer")
    parser.add_argument("--outer-momentum", type=float, default=0.9, help="DiLoCo: of the outer optimizer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def optimizer_for(options: argparse.Namespace, model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer, and who follows its steps."""
    compression = CASTS.get(options.compression, options.compression)
    rate = options.lr or (0.1 if options.sgd else 3e-3)
    if options.method == "onebit-adam":
        return hvd.OneBitAdam(model.named_parameters(), lr=rate, freeze=max(1, options.steps // 5)), None
    optimizer: torch.optim.Optimizer
    if options.sgd:
        # DGC brings its own momentum.
        momentum = 0.0 if options.compression.startswith("dgc") else 0.9
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=momentum)
    else:
        optimizer = torch.optim.Adam(model.parameters(), rate)
    if options.method == "local-sgd":
        return optimizer, hvd.LocalSGD(model, optimizer, options.every)
    if options.method == "gossip":
        return optimizer, hvd.Gossip(model, optimizer)
    if options.method == "diloco":
        code = None if options.compression == "none" else options.compression
        how = {"every": options.every, "fragments": options.fragments, "delay": options.delay, "alpha": options.alpha}
        outer = hvd.Nesterov(options.outer_lr, options.outer_momentum)
        return optimizer, hvd.DiLoCo(model, optimizer, outer, compression=code, **how)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression), None


def rate_at(step: int, options: argparse.Namespace) -> float:
    """The learning rate of a step, as a part of the one that was asked for."""
    rises = min(1.0, (step + 1) / options.warmup) if options.warmup else 1.0
    return min(rises, 1 - step / options.steps) if options.decay else rises


def bytes_sent(model: nn.Module, steps: int, seldom: bool, prefix: str = "") -> tuple[float, float]:
    """What this rank's host has sent to others, and what it would have sent had it averaged every gradient as it is.

    The report knows what was compressed, of tensors whose names begin with the prefix. All else goes as it is after each
    step; with those that talk `seldom`, there is nothing else.
    """
    entries = [entry for name, entry in hvd.compression_report().items() if name.startswith(prefix)]
    hosts = hvd.cross_size() if hvd.cross_size() > 1 else hvd.size()
    every = steps * sum(p.nbytes for p in model.parameters()) * 2 * (hosts - 1) / hosts
    as_it_is = 0.0 if seldom else every - sum(entry["plain_bytes"] for entry in entries)
    return as_it_is + sum(entry["sent_bytes"] for entry in entries), every


def main() -> None:
    options = parse()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1000 * options.seed + hvd.rank())
    task = TASKS[options.task](options.batch_size)
    model = task.model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        optimizer, training = optimizer_for(options, model)

    began = time.perf_counter()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, options))
    for _ in range(options.steps):
        optimizer.zero_grad()
        task.loss(model).backward()
        optimizer.step()
        schedule.step()
    if training is not None:
        training.settle()
    seconds = time.perf_counter() - began

    model.eval()
    with torch.no_grad():
        loss = task.test_loss(model)
    sent, plain = bytes_sent(model, options.steps, seldom=training is not None)
    if hvd.rank() == 0 and options.json:
        print(json.dumps({"loss": loss, "seconds": seconds, "sent_bytes": sent, "plain_bytes": plain}))
    elif hvd.rank() == 0:
        fewer = f", {plain / sent:.1f} times fewer bytes" if sent else ""
        print(
            f"{options.method}, {options.compression}: test loss {loss:.4f}, {options.steps / seconds:.1f} steps/s{fewer}"
        )
    hvd.shutdown()


if __name__ == "__main__":
    main()
