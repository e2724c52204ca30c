"""What Python code has to say goes to the one log, as everything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = 'from corro import _native; _native.log_warning("nobody answers")'


def said(**variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CORRO_LOG", "HOROVOD_LOG"))}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=env | variables, stderr=subprocess.PIPE, text=True, check=True).stderr


def test_python_speaks_in_the_one_log():
    assert "W log.rs:" in said(), said()
    assert said().endswith("nobody answers\n")
    line = json.loads(said(CORRO_LOG_FORMAT="json"))
    assert line["text"] == "nobody answers", line
    assert said(HOROVOD_LOG_LEVEL="error") == ""
