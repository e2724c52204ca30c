"""What ranks run in the tests of Ray. A module of its own, which workers import too."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np


def add_up(bias: float = 0.0, *, scale: float = 1.0) -> dict[str, Any]:
    import corro.numpy as hvd

    hvd.init()
    print(f"rank {hvd.rank()} speaks", flush=True)
    total = hvd.allreduce(np.full(4, hvd.rank() + bias), op=hvd.Sum, name="x")
    told = {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "local": (hvd.local_rank(), hvd.local_size()),
        "cross": (hvd.cross_rank(), hvd.cross_size()),
        "sum": float(total[0]) * scale,
        "pid": os.getpid(),
        "node": os.environ["HOROVOD_HOSTNAME"],
        "said": os.environ.get("SAID_BY_THE_DRIVER"),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "secret on a command line": os.environ["CORRO_SECRET"] in command_lines(),
    }
    hvd.shutdown()
    return told


def command_lines() -> str:
    """Of all processes that can be seen."""
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


def fail_on(rank: int) -> None:
    """One rank raises, and the others wait for it in vain."""
    import corro.numpy as hvd

    hvd.init()
    if hvd.rank() == rank:
        raise ValueError("no such column")
    hvd.allreduce(np.ones(1), name="never")


def die_on(rank: int) -> None:
    """The process of one rank is killed while the others work with it."""
    import corro.numpy as hvd

    hvd.init()
    hvd.allreduce(np.ones(1), name="begin")
    if hvd.rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        hvd.allreduce(np.ones(1), name="x")


class Counter:
    """Lives in a worker between calls."""

    def __init__(self, start: int, step: int = 1) -> None:
        self.value = start
        self.step = step

    def next(self) -> int:
        self.value += self.step
        return self.value


def train_elastically(folder: str, steps: int, pause: float, size: int) -> tuple[int, int, int]:
    """Steps until there were `steps` of them with `size` ranks; notes down time, step, rank, size, actor and node."""
    import corro.numpy as hvd
    from corro._front.elastic import ObjectState, restart, run_fn
    from corro.ray import ray_logger

    hvd.init()
    state = ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, step=0, full=0)
    place = Path(folder)

    def loop(state: Any) -> None:
        while state.full < steps:
            total = hvd.allreduce(np.ones(2), op=hvd.Sum, name="x")
            assert float(total[0]) == hvd.size()
            state.step += 1
            state.full += hvd.size() == size
            with (place / f"rank.{os.getpid()}").open("a") as notes:
                notes.write(f"{time.time()} {state.step} {hvd.rank()} {hvd.size()} {' '.join(map(str, homes()))}\n")
            if hvd.rank() == 0:
                ray_logger.log({"step": state.step, "size": hvd.size()})
            time.sleep(pause)
            state.commit()

    run_fn(loop, restart)(state)
    told = hvd.rank(), hvd.size(), state.step
    hvd.shutdown()
    return told


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])


def homes() -> tuple[int, int]:
    """The processes of Ray's that this rank lives in: its actor, which is its agent's parent, and its node."""
    actor = parent(os.getppid())
    return actor, parent(actor)


def fail_elastically(rank: int) -> None:
    import corro.numpy as hvd

    hvd.init()
    if hvd.rank() == rank:
        raise ValueError("no such column")
    hvd.allreduce(np.ones(1), name="never")


def count_in_rank_order(counter: Counter) -> int:
    import corro.numpy as hvd

    hvd.init()
    return counter.next() + hvd.rank()


def tell_surroundings() -> dict[str, Any]:
    import corro.numpy as hvd

    hvd.init()
    hvd.allreduce(np.ones(1), name="x")
    told = {
        "rank": hvd.rank(),
        "local": hvd.local_rank(),
        "said": os.environ.get("SAID_BY_THE_DRIVER"),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "ray": os.environ.get("RAY_ADDRESS"),
        "secret on a command line": os.environ["CORRO_SECRET"] in command_lines(),
    }
    hvd.shutdown()
    return told


def train_and_tell(config: dict[str, Any]) -> None:
    import ray.train

    import corro.numpy as hvd

    hvd.init()
    context = ray.train.get_context()
    total = hvd.allreduce(np.full(4, hvd.rank() + 1.0), op=hvd.Sum, name="x")
    seat = (hvd.rank(), hvd.local_rank(), hvd.cross_rank(), hvd.size(), hvd.local_size(), hvd.cross_size())
    theirs = (context.get_world_rank(), context.get_world_size())
    Path(config["folder"], f"rank{hvd.rank()}").write_text(f"{float(total[0])} {seat} {theirs}")
    ray.train.report({"total": float(total[0])})
    hvd.shutdown()


def train_and_die_once(config: dict[str, Any]) -> None:
    import corro.numpy as hvd

    hvd.init()
    note = Path(config["folder"], "died")
    hvd.allreduce(np.ones(1), name="begin")
    if hvd.rank() == 1 and not note.exists():
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    total = hvd.allreduce(np.ones(1), op=hvd.Sum, name="x")
    Path(config["folder"], f"rank{hvd.rank()}").write_text(str(float(total[0])))
    hvd.shutdown()
