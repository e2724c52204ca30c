"""LSF's `jsrun`. Corro starts ranks itself, also inside an LSF job; ranks that you start by `jsrun` find each other."""

from __future__ import annotations

import shutil
from typing import Any, NoReturn


def is_jsrun_installed() -> bool:
    return shutil.which("jsrun") is not None


def js_run(settings: Any, nics: Any, env: Any, command: Any, stdout: Any = None, stderr: Any = None) -> NoReturn:
    raise RuntimeError(
        "Corro does not call jsrun for you. Inside an LSF job either call it yourself, as in `jsrun -n 4 python "
        "train.py`, or let `corro run python train.py` start a rank in every slot of the job."
    )
