"""What ranks run in the tests of Spark. A module of its own, which executors import too."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def ancestors() -> list[tuple[int, str]]:
    """The processes above this one, with their names."""
    found = []
    pid = os.getppid()
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :]
        found.append((pid, name))
        pid = int(rest.split()[1])
    return found


def kill_executor() -> None:
    """The Java process in which this rank's task runs, as a machine that fails would end it."""
    os.kill(next(pid for pid, name in ancestors() if name == "java"), signal.SIGKILL)


def add_up(bias: float = 0.0, *, scale: float = 1.0) -> dict[str, Any]:
    import corro.numpy as hvd

    hvd.init()
    print(f"rank {hvd.rank()} speaks", flush=True)
    print(f"rank {hvd.rank()} complains", file=sys.stderr, flush=True)
    total = hvd.allreduce(np.full(4, hvd.rank() + bias), op=hvd.Sum, name="x")
    return {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "local": (hvd.local_rank(), hvd.local_size()),
        "sum": float(total[0]) * scale,
        "executor": next(pid for pid, name in ancestors() if name == "java"),
        "said": os.environ.get("SAID_BY_THE_DRIVER"),
        "secret on a command line": os.environ["CORRO_SECRET"] in command_lines(),
    }


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
    import corro.numpy as hvd

    hvd.init()
    if hvd.rank() == rank:
        raise ValueError("no such column")
    hvd.allreduce(np.ones(1), name="never")


def lose_executor_of(rank: int, note: str) -> None:
    """Allreduces until the end; the executor of one rank is killed, and when that was is noted down."""
    import corro.numpy as hvd

    hvd.init()
    hvd.allreduce(np.ones(1), name="begin")
    if hvd.rank() == rank:
        Path(note).write_text(str(time.time()), encoding="utf-8")
        kill_executor()
    while True:
        hvd.allreduce(np.ones(1), name="x")
        time.sleep(0.01)


def wait_for_end(note: str) -> None:
    """Notes down its process and then does nothing, for very long."""
    import corro.numpy as hvd

    hvd.init()
    Path(f"{note}.{hvd.rank()}").write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(600)


def train_elastically(folder: str, steps: int, killed_at: int | None, full_size: int) -> tuple[int, int, int]:
    """Counts steps. At `killed_at` the executor of the last rank is killed, once; the end waits for `full_size` ranks."""
    import corro.numpy as hvd
    from corro._front.elastic import ObjectState, restart, run_fn

    hvd.init()
    state = ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, step=0)

    def train(state: Any) -> tuple[int, int, int]:
        together = 0  # steps that all ranks have taken since they met
        while state.step < steps or together < 3:
            total = hvd.allreduce(np.ones(1), op=hvd.Sum, name="step")
            assert total[0] == hvd.size()
            state.step += 1
            together += hvd.size() == full_size
            state.commit()
            with Path(folder, f"rank.{os.getpid()}").open("a", encoding="utf-8") as log:
                log.write(f"{time.time()} {state.step} {hvd.rank()} {hvd.size()} {hvd.local_rank()}\n")
            killed = Path(folder, "killed")
            if state.step == killed_at and hvd.rank() == hvd.size() - 1 and not killed.exists():
                killed.write_text(str(time.time()), encoding="utf-8")
                kill_executor()
            time.sleep(0.05)
        return hvd.rank(), hvd.size(), state.step

    return run_fn(train, restart)(state)
