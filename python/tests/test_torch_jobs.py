"""The examples for PyTorch and what the documentation says of Lightning, as whole programs on two ranks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from test_jobs import run_job

ROOT = Path(__file__).parents[2]

# Several in one job: for such short runs, importing torch is most of the time.
EXAMPLES = """
import runpy, sys
folder, *examples = sys.argv[1:]
sys.path.insert(0, folder)
for example in examples:
    sys.argv = example.split()
    runpy.run_path(f"{folder}/{sys.argv[0]}", run_name="__main__")
"""
QUICK = "--batch-size 2 --warmup 2 --iterations 3"


def run_examples(folder: Path, examples: list[str], **env: str) -> str:
    """What they print."""
    script = folder / "examples.py"
    script.write_text(EXAMPLES)
    job = run_job(2, sys.executable, str(script), str(ROOT / "examples" / "torch"), *examples, **env)
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
    return job.stdout + job.stderr


def test_examples_run_and_no_check_has_anything_to_say(tmp_path: Path) -> None:
    examples = [
        "digits.py --epochs 2",
        "transformer.py --steps 20",
        f"synthetic_benchmark.py {QUICK}",
        f"alexnet.py {QUICK} --fp16",
        f"alexnet.py {QUICK} --mode ps",
    ]
    printed = run_examples(tmp_path, examples)
    assert printed.count("images/s in all") == 3, printed[-6000:]
    assert float(printed.split("test accuracy ")[1].split("%")[0]) > 50, printed[-6000:]
    assert "CORRO_CHECKS" not in printed, printed[-6000:]


def test_examples_of_fewer_bytes(tmp_path: Path) -> None:
    examples = [
        "fewer_bytes.py --task manual --steps 2 --compression int8",
        "slow_line.py --steps 40 --width 128 --every 20",
    ]
    printed = run_examples(tmp_path, examples, CORRO_COMPRESS_INSIDE="1")
    assert "sync, int8: test loss" in printed, printed[-6000:]
    assert 'compression="auto": ' in printed, printed[-6000:]
    line = r":(\S+) +\S+ steps/s +(\S+) kB sent a step +test loss (\S+)"
    found = {way: (float(sent), float(loss)) for way, sent, loss in re.findall(line, printed)}
    assert list(found) == ["none", "auto", "int8", "DiLoCo"], printed[-6000:]
    # Chance is 2.3.
    assert all(loss < 2 for _, loss in found.values()), found
    # A byte for four, and scales; and that every 20 steps. Kilobytes are printed with one digit.
    assert found["none"][0] / found["int8"][0] == pytest.approx(4, rel=0.1), found
    assert found["none"][0] / found["DiLoCo"][0] / 20 == pytest.approx(4, rel=0.1), found
