"""Corro under PyTorch Lightning 2.x: `Trainer(strategy=CorroStrategy())`, started by `corro run`.

Lightning comes under two names, `lightning` and `pytorch_lightning`, whose classes do not mix. `CorroStrategy` belongs to
the one that the program has imported before this module, to `lightning` if there is nothing to tell; `strategy_for`
chooses. Importing this module also makes `Trainer(strategy="corro")` known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corro.lightning._logger import logger_for
from corro.lightning._strategy import installed, strategy_for

if TYPE_CHECKING:
    from corro.lightning._logger import Logger as CorroLogger
    from corro.lightning._strategy import Strategy as CorroStrategy
else:
    CorroStrategy = strategy_for(installed())
    CorroLogger = logger_for(installed())

__all__ = ["CorroLogger", "CorroStrategy", "logger_for", "strategy_for"]
