"""What a cell shows whose job has failed: IPython's own shell, which is that of notebooks, runs it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CELL = """
import corro

def train(rate):
    if rate < 1:
        raise ValueError("the rate is too low")

def start():
    corro.run(train, args=(0.1,), num_proc=2)

start()
"""


@pytest.mark.skipif(
    importlib.util.find_spec("IPython") is None, reason="IPython is only among the newest packages (notebook.txt)"
)
def test_a_notebook_shows_one_traceback_the_culprits(tmp_path: Path) -> None:
    shell = [sys.executable, "-m", "IPython", "--HistoryManager.enabled=False", "--colors=NoColor", "-c", CELL]
    variables = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    shown = subprocess.run(shell, env=variables, capture_output=True, text=True, timeout=120, check=False)
    everything = shown.stdout + shown.stderr
    assert shown.returncode == 1, everything
    assert everything.count("Traceback") == 1, everything
    assert "Traceback of rank " in everything, everything
    assert everything.count(", in train") == 1, everything
    assert everything.count("\nValueError: the rate is too low") == 1, everything
    assert "JobFailed: corro.run failed: rank " in everything, everything
    # Nothing of how the cell, or Corro, came there.
    assert ", in start" not in everything, everything
    assert "runner/__init__.py" not in everything, everything
