"""What a Lightning module logs, for those who watch the job."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from corro._front import watching


@functools.cache
def logger_for(package: str) -> type[Logger]:
    """The logger for `lightning.pytorch`, or for `pytorch_lightning`: packages of the same name whose classes do not mix.

    Raises `ImportError` if the package is not installed.

    Example:
        >>> from corro.lightning import logger_for
        >>> logger = logger_for("lightning")()
    """
    package = "lightning.pytorch" if package == "lightning" else package
    base: Any = importlib.import_module(f"{package}.loggers.logger").Logger
    members = {"__doc__": _Logger.__doc__, "__module__": "corro.lightning"}
    logger: Any = type("CorroLogger", (_Logger, base), members)
    return logger


class _Logger:
    """`Trainer(logger=CorroLogger())`: what `self.log` logs goes where `hvd.log` sends values, averaged over the ranks."""

    name = "corro"
    version = 0

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        watching.log(step or 0, **{name: value for name, value in metrics.items() if name != "epoch"})

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """They are no values over time, and so are not shown."""


if TYPE_CHECKING:

    class Logger(_Logger, Any):
        """As checkers see it: its other half belongs to whichever Lightning it is for, so they take it for any class."""
