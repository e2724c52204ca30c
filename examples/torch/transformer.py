"""A small transformer that learns to write like the sonnets beside this file, letter by letter.

corro run -np 2 python examples/torch/transformer.py
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

import corro.torch as hvd

TEXT = Path(__file__).with_name("sonnets.txt")


class Writer(nn.Module):
    future: torch.Tensor

    def __init__(self, letters: int, context: int, width: int = 96, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, letters)
        self.register_buffer("future", torch.triu(torch.full((context, context), -math.inf), 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        y = self.letter(x) + self.place(torch.arange(length))
        logits: torch.Tensor = self.output(self.layers(y, mask=self.future[:length, :length]))
        return logits

    @torch.no_grad()
    def write(self, start: torch.Tensor, count: int) -> torch.Tensor:
        self.eval()
        text = start
        for _ in range(count):
            logits = self(text[None, -len(self.future) :])[0, -1]
            text = torch.cat([text, torch.multinomial(F.softmax(logits / 0.7, -1), 1)])
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--context", type=int, default=64)
    options = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    text = TEXT.read_text(encoding="utf-8")
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])

    model = Writer(len(letters), options.context)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    start = time.perf_counter()
    progress = tqdm(range(options.steps), unit="step", disable=hvd.rank() != 0)
    loss = torch.tensor(0.0)
    for _ in progress:
        # Every rank draws its own passages: its generator was seeded with its rank.
        places = torch.randint(len(data) - options.context - 1, (options.batch_size,))
        passages = torch.stack([data[place : place + options.context + 1] for place in places])
        optimizer.zero_grad()
        logits = model(passages[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), passages[:, 1:].flatten())
        loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        progress.set_postfix(loss=f"{loss.item():.2f}")
    seconds = time.perf_counter() - start

    mean = hvd.allreduce(loss.detach(), name="loss").item()
    if hvd.rank() == 0:
        rate = options.steps * options.batch_size * options.context * hvd.size() / seconds
        print(f"ranks {hvd.size()}   loss {mean:.2f} (chance: {math.log(len(letters)):.2f})   {rate:,.0f} letters/s\n")
        print("".join(letters[i] for i in model.write(data[:8], 200)), flush=True)


if __name__ == "__main__":
    main()
