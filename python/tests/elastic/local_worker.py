"""Streaming DiLoCo that tests kill, with numpy: one process is killed while a fragment is on its way.

What happens is written to `$ELASTIC_LOG/<pid>.jsonl`, a line for each event.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np

import corro.numpy as hvd
from corro._front.elastic import restart, run_fn
from corro._front.local.diloco import DiLoCo
from corro._front.local.elastic import LocalState
from corro._front.local.outer import Nesterov

LOG = Path(os.environ["ELASTIC_LOG"])
VICTIM = int(os.environ.get("ELASTIC_VICTIM", "-1"))
STEPS, SIZES = 60, [40, 60]


class Parameters:
    """Two vectors of zeros."""

    def __init__(self) -> None:
        self.values = np.zeros(sum(SIZES), np.float32)

    def sizes(self) -> list[int]:
        return SIZES

    def read(self, which: range) -> np.ndarray:
        return self.values[self._place(which)].copy()

    def write(self, which: range, values: np.ndarray) -> None:
        self.values[self._place(which)] = values

    def _place(self, which: range) -> slice:
        return slice(sum(SIZES[: which.start]), sum(SIZES[: which.stop]))


def tell(event: str, **facts: object) -> None:
    with (LOG / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "pid": os.getpid(), "time": time.monotonic(), **facts}) + "\n")


parameters = Parameters()
own = 0
tell("start")
hvd.init()
# A fragment goes every 4 steps, and takes 2 of them.
training = DiLoCo(parameters, Nesterov(0.7, 0.5), every=8, fragments=2, delay=2, compression="int8 inside=yes")
state = LocalState(training)


def train(_state: LocalState) -> None:
    global own
    tell("begin", rank=hvd.rank(), size=hvd.size(), steps=training.steps, mean=float(parameters.values.mean()))
    while training.steps < STEPS:
        # Each rank pulls to a place of its own; all of them together to the mean of those.
        parameters.values -= 0.05 * (parameters.values - np.float32(1 + hvd.rank()))
        own += 1
        training.step()
        tell("step", rank=hvd.rank(), size=hvd.size(), steps=training.steps, own=own)
        if training.steps == 21 and hvd.rank() == VICTIM and not (LOG / "fault").exists():
            (LOG / "fault").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        if training.steps % 8 == 0:
            state.commit()
    training.settle()


run_fn(train, restart)(state)
tell("end", rank=hvd.rank(), size=hvd.size(), steps=training.steps, own=own, values=parameters.values.tolist())
