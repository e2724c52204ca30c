"""What every rank of a job that is to fail runs: `program.py WAY CULPRIT MOMENT TOKEN`.

One rank, the culprit, comes to its end in one of WAYS, with TOKEN in whatever it can say; the others do what MOMENTS says.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

HELPERS_FAIL = "raises after helpers of others have failed"
# How many operations make the ranks follow a plan.
PLANNED = 40


def main(way: str, culprit: int, moment: str, token: str) -> None:
    rank = int(os.environ.get("HOROVOD_RANK") or os.environ["RANK"])
    if rank == culprit and way in BEFORE_INIT:
        import corro  # noqa: F401 - which listens from here on

        BEFORE_INIT[way](token)
    import numpy as np

    import corro.numpy as hvd

    hvd.init()
    assert hvd.rank() == rank
    if rank != culprit and way == HELPERS_FAIL:
        # A program that a rank starts is nobody of the job, whatever it inherits: C's `system` closes no files.
        helper = f"{shlex.quote(sys.executable)} -c 'import corro; raise RuntimeError(0)' 2>/dev/null"
        assert os.system(helper) != 0
    data = np.ones(64, np.float32)
    for _ in range(PLANNED if moment == "plan" else 3):
        hvd.allreduce_(data, op=hvd.Max, name="step")
    if rank == culprit:
        # The others are to wait already, or to compute still.
        time.sleep(0.05 if moment == "compute" else 0.2)
        WAYS[way](token, hvd)
        return
    if moment == "compute":
        time.sleep(0.4)
    try:
        while True:
            hvd.allreduce_(data, op=hvd.Max, name="step")
    except hvd.HorovodInternalError as error:
        if moment == "wait and exit":
            print(error, file=sys.stderr, flush=True)
            sys.exit(4)
        if moment == "wait and vanish":
            print(error, file=sys.stderr, flush=True)
            os._exit(5)
        if moment == "wait and wrap":
            raise RuntimeError("training failed") from error
        raise


def step(token: str) -> None:
    raise ValueError(token)


def raises(token: str, _: Any) -> None:
    step(token)


def exits(_token: str, _: Any) -> None:
    sys.exit(3)


def raises_exit(_token: str, _: Any) -> None:
    raise SystemExit(3)


def prints_and_exits(token: str, _: Any) -> None:
    try:
        step(token)
    except ValueError:
        traceback.print_exc()
        sys.exit(6)


def vanishes(_token: str, _: Any) -> None:
    os._exit(3)


def vanishes_in_good_order(_token: str, _: Any) -> None:
    os._exit(0)


def by_signal(number: signal.Signals) -> Callable[[str, Any], None]:
    def die(_token: str, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), number)
        time.sleep(60)

    return die


def reads_nothing(_token: str, _: Any) -> None:
    ctypes.string_at(0)


def interrupted(_token: str, _: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def shuts_down_on_its_way_out(token: str, hvd: Any) -> None:
    try:
        step(token)
    finally:
        hvd.shutdown()


def raises_in_a_thread(token: str, _: Any) -> None:
    thread = threading.Thread(target=step, args=(token,))
    thread.start()
    thread.join()


def raises_while_a_thread_waits(token: str, hvd: Any) -> None:
    import numpy as np

    # Nobody else takes part in this, and Python waits for the thread before it calls what was registered with atexit.
    threading.Thread(target=lambda: hvd.allreduce(np.ones(1), name="alone")).start()
    time.sleep(0.1)
    step(token)


def wrong_call(token: str, hvd: Any) -> None:
    import numpy as np

    hvd.allreduce(np.array([token]), name="text")


def runs_out_of_memory(_token: str, _: Any) -> None:
    import numpy as np

    np.ones(1 << 60, np.uint8)


def ends_early(_token: str, _: Any) -> None:
    return


def raises_before_init(token: str) -> None:
    step(token)


def refused_by_init(_token: str) -> None:
    import corro

    os.environ["CORRO_TIMEOUT"] = "soon"
    corro.init()


BEFORE_INIT: dict[str, Callable[[str], None]] = {
    "raises before init": raises_before_init,
    "is refused by init": refused_by_init,
}
WAYS: dict[str, Callable[[str, Any], None]] = {
    "raises": raises,
    HELPERS_FAIL: raises,
    "calls sys.exit": exits,
    "raises SystemExit": raises_exit,
    "prints and exits": prints_and_exits,
    "vanishes": vanishes,
    "vanishes in good order": vanishes_in_good_order,
    "is killed": by_signal(signal.SIGKILL),
    "is terminated": by_signal(signal.SIGTERM),
    "aborts": by_signal(signal.SIGABRT),
    "reads where nothing is": reads_nothing,
    "is interrupted": interrupted,
    "shuts down on its way out": shuts_down_on_its_way_out,
    "raises in a thread": raises_in_a_thread,
    "raises while a thread waits": raises_while_a_thread_waits,
    "calls wrongly": wrong_call,
    "runs out of memory": runs_out_of_memory,
    "ends early": ends_early,
}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
