"""A training that tests kill: linear regression with numpy, elastic, every sample counted by the ranks that used it.

What happens is written to `$ELASTIC_LOG/<pid>.jsonl`, a line for each event. It goes on until there is a file `stop`,
and then ends after the epoch. `$ELASTIC_FAULT` names a place where one process, the first that comes there, is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import corro.numpy as hvd
from corro._front.elastic import restart
from corro._front.objects import broadcast_object
from corro._front.sampler import Order, share
from corro.common.elastic import ObjectState, run_fn

LOG = Path(os.environ["ELASTIC_LOG"])
FAULT = os.environ.get("ELASTIC_FAULT", "")
PACE = float(os.environ.get("ELASTIC_PACE", "0.02"))
SAMPLES, FEATURES, BATCH = 240, 4, 5

random = np.random.default_rng(0)
X = random.normal(size=(SAMPLES, FEATURES))
Y = X @ np.arange(1.0, FEATURES + 1) + 0.01 * random.normal(size=SAMPLES)
ORDER = Order(SAMPLES, shuffle=True)


def tell(event: str, **facts: object) -> None:
    with (LOG / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "pid": os.getpid(), "time": time.monotonic(), **facts}) + "\n")


def fault(place: str) -> None:
    """Here one process is killed, if it is the place."""
    if place != FAULT:
        return
    try:
        os.close(os.open(LOG / "fault", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    tell("fault", place=place)
    os.kill(os.getpid(), signal.SIGKILL)


class Training(ObjectState):
    """The state, with places to be killed at."""

    def __init__(self) -> None:
        values = {"weights": np.zeros(FEATURES), "epoch": 0, "processed": 0, "used": np.zeros(SAMPLES), "losses": []}
        super().__init__(broadcast_object, hvd.rank, **values)

    def save(self) -> None:
        if len(self.losses) > 10:
            fault("save")
        super().save()
        if len(self.losses) > 10:
            fault("saved")

    def sync(self) -> None:
        if hvd.rank() == 0 and hvd.size() > 1 and len(self.losses) > 10:
            fault("sync at rank 0")
        if hvd.rank() == hvd.size() - 1:
            fault("sync at the last rank")
        super().sync()


def loss(weights: np.ndarray) -> float:
    return float(np.square(X @ weights - Y).mean())


def step(state: Training) -> bool:
    """One step of all ranks; whether training is to end after this epoch."""
    left = ORDER.left(state.epoch, state.processed)
    mine = share(left, hvd.rank(), hvd.size(), pad=False)[:BATCH]
    time.sleep(PACE)
    x, y = X[mine], Y[mine]
    used = np.zeros(SAMPLES)
    used[mine] = 1
    stop = float((LOG / "stop").exists())
    gradient = x.T @ (x @ state.weights - y)
    summed = hvd.allreduce(np.concatenate([gradient, used, [stop]]), op=hvd.Sum, name="step")
    count = summed[FEATURES:-1].sum()
    state.weights = state.weights - 0.1 * summed[:FEATURES] / count
    state.used = state.used + summed[FEATURES:-1]
    state.processed += BATCH * hvd.size()
    state.losses.append(loss(state.weights))
    return summed[-1] > 0


def train(state: Training) -> None:
    tell("begin", rank=hvd.rank(), size=hvd.size(), steps=len(state.losses))
    while True:
        stop = False
        while state.processed < SAMPLES:
            stop = step(state)
            tell("step", rank=hvd.rank(), size=hvd.size(), steps=len(state.losses))
            state.commit()
        if not (state.used == state.epoch + 1).all():
            tell("error", what="samples lost or repeated", epoch=state.epoch, used=state.used.tolist())
            sys.exit(3)
        state.epoch += 1
        state.processed = 0
        if stop:
            return


tell("start")
fault("before init")
hvd.init()
tell("init", rank=hvd.rank(), size=hvd.size())
fault("after init")
state = Training()
state.register_reset_callbacks([lambda: fault("reset")])
run_fn(train, restart)(state)
tell("end", rank=hvd.rank(), size=hvd.size(), epochs=state.epoch, losses=state.losses)
