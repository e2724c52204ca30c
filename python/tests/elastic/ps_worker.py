"""Training by parameter servers that tests kill, with PyTorch: linear regression, of which one process is killed on the way.

What happens is written to `$ELASTIC_LOG/<pid>.jsonl`, a line for each event.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch

import corro.torch as hvd

LOG = Path(os.environ["ELASTIC_LOG"])
VICTIM = int(os.environ.get("ELASTIC_VICTIM", "-1"))
STALENESS = int(os.environ.get("ELASTIC_STALENESS", "0"))
STEPS = 120
TARGET = torch.arange(1.0, 5.0)


def tell(event: str, **facts: object) -> None:
    with (LOG / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "pid": os.getpid(), "time": time.monotonic(), **facts}) + "\n")


tell("start")
hvd.init()
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), mode="ps", staleness=STALENESS
)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, steps=0)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    tell("begin", rank=hvd.rank(), size=hvd.size(), steps=state.steps)
    while state.steps < STEPS:
        data = torch.Generator().manual_seed(1000 * state.steps + hvd.rank())
        x = torch.randn(16, 4, generator=data)
        optimizer.zero_grad()
        loss = (model(x)[:, 0] - x @ TARGET).square().mean()
        loss.backward()
        optimizer.step()
        state.steps += 1
        tell("step", rank=hvd.rank(), size=hvd.size(), steps=state.steps, loss=float(loss.detach()))
        if state.steps == 33 and hvd.rank() == VICTIM and not (LOG / "fault").exists():
            (LOG / "fault").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        if state.steps % 10 == 0:
            state.commit()


train(state)
tell("end", rank=hvd.rank(), size=hvd.size(), steps=state.steps, values=model.weight.detach()[0].tolist())
