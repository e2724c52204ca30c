"""The example programs, each as a driver of its own with two executors; and that they have learned what they claim."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import submit_arguments

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "spark"

# Most of it is the import of frameworks, by every process anew.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("example", "pattern", "least", "most"),
    [
        ("images_torch.py --epochs 6", r"ranks 2   test accuracy ([\d.]+)%", 90, 100),
        ("images_keras.py --epochs 6", r"ranks 2   test accuracy ([\d.]+)%", 90, 100),
        ("sales_torch.py --epochs 12", r"ranks 2   sales of the last days predicted within ([\d.]+) %", 0, 20),
        ("sales_keras.py --epochs 12", r"ranks 2   sales of the last days predicted within ([\d.]+) %", 0, 20),
        ("run_images.py", r"ranks 2   test accuracy ([\d.]+)%", 90, 100),
        # It begins when there is one executor; how soon the other comes is Spark's to say.
        ("run_images.py --elastic", r"ranks [12]   test accuracy ([\d.]+)%", 90, 100),
    ],
)
def test_examples(example: str, pattern: str, least: float, most: float, tmp_path: Path) -> None:
    program, *words = example.split()
    env = {**os.environ, **submit_arguments("local-cluster[2,1,1024]"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(EXAMPLES / program), *words]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False)
    print(ran.stdout[-3000:])
    found = re.search(pattern, ran.stdout)
    assert found is not None, _without_java(ran.stderr)[-5000:]
    assert least <= float(found.group(1)) <= most


def _without_java(text: str) -> str:
    """What Python says: Spark's log comes after it, and is long."""
    return "\n".join(line for line in text.splitlines() if not re.match(r"\s+at |\d\d/\d\d/\d\d ", line))


def test_all_examples_are_run() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("made_")}
    marker = next(mark for mark in test_examples.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert programs == {one[0].split()[0] for one in marker.args[1]}
