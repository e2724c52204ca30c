"""For those who watch the job: values of the training, and where its steps end."""

from __future__ import annotations

from typing import Any

from corro import _native


def log(step: int, **values: Any) -> None:
    """Logs values of the training, such as loss and accuracy: `corro run` shows them on its page and writes them to files.

    Call it on all ranks: the mean over those that log a step is what is shown. That is computed by the launcher, so that no rank
    waits for another here. Values are numbers, or tensors and arrays of one element; one on a GPU is waited for. Does
    nothing if nobody watches (`corro run --page`, `--record`, `--report` or `--logdir`).

    Example:
        >>> hvd.log(step=100, loss=0.25, accuracy=0.9)
    """
    if not _native.is_watched():
        return
    for name, value in values.items():
        # A tensor that has a gradient is no number to torch.
        detach = getattr(value, "detach", None)
        _native.log_value(int(step), name, float(value if detach is None else detach()))


def mark_step() -> None:
    """A step has ended, and its gradients are there: the same moment on all ranks."""
    _native.mark_step()
