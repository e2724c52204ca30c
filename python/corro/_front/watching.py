"""For those who watch the job: values of the training, and where its steps end."""

from __future__ import annotations

import faulthandler
import os
import signal
import stat
from typing import Any

from corro import _native
from corro._environment import setting

# A signal that programs hardly ever use. Nobody sends it before this process has said that it expects it.
_SIGNAL = signal.SIGRTMIN + 11
# The pipe for stacks, once it is open.
_pipe: list[int] = []


def log(step: int, **values: Any) -> None:
    """Logs values of the training, such as loss and accuracy: `corro run` shows them on its page and writes them to files.

    Call it on all ranks: the mean over those that log a step is what is shown. That is computed by the launcher, so that
    no rank waits for another here. Values are numbers, or tensors and arrays of one element; one on a GPU is waited for.
    Does nothing if nobody watches (`corro run --page`, `--record`, `--report` or `--logdir`).

    Example:
        >>> hvd.log(step=100, loss=0.25, accuracy=0.9)
    """
    if not _native.is_watched():
        return
    for name, value in values.items():
        # A tensor that has a gradient is no number to torch.
        detach = getattr(value, "detach", None)
        _native.log_value(int(step), name, float(value if detach is None else detach()))


def listen() -> None:
    """Has this process tell where its threads are when the launcher asks, also if it hangs with Python's lock held."""
    word = setting("STACKS")
    if word is None:
        return
    if not _pipe:
        try:
            descriptor, device, inode = (int(number) for number in word.split(":"))
            pipe = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (ValueError, OSError):
            return
        found = os.fstat(pipe)
        # Something in between may have closed it, and its number may be another file by now.
        if not stat.S_ISFIFO(found.st_mode) or (found.st_dev, found.st_ino) != (device, inode):
            os.close(pipe)
            return
        _pipe.append(pipe)
        faulthandler.register(_SIGNAL, file=pipe, all_threads=True)
    _native.dumps_on(_SIGNAL)


def mark_step() -> None:
    """A step has ended, and its gradients are there: the same moment on all ranks."""
    _native.mark_step()
