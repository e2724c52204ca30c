"""Type checkers in their strict modes read what users write: the examples, and programs with every public name."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
USERS = ROOT / "python" / "tests" / "typing"
# The programs, what they call the modules, and the modules.
PROGRAMS = {
    "torch": [
        ("user_of_torch", "hvd", "corro.torch"),
        ("user_of_corro", "hvd", "corro.numpy"),
        ("user_of_corro", "corro", "corro"),
    ],
    "tensorflow": [
        ("user_of_tensorflow", "hvd", "corro.tensorflow"),
        ("user_of_keras", "hvd", "corro.keras"),
        ("user_of_keras", "tf_hvd", "corro.tensorflow.keras"),
    ],
    "jax": [("user_of_jax", "hvd", "corro.jax")],
}[os.environ.get("CORRO_TEST_FRAMEWORK", "torch")]
# What every front has is used with one of them.
SHARED = {"user_of_keras tf_hvd"}


@pytest.mark.parametrize(("program", "called", "module"), PROGRAMS)
def test_every_public_name_is_used(program: str, called: str, module: str) -> None:
    tree = ast.parse((USERS / f"{program}.py").read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == called
    }
    public = set(importlib.import_module(module).__all__)
    if f"{program} {called}" in SHARED:
        public -= set(importlib.import_module("corro._front.basics").__all__)
    assert public - used == set()


@pytest.mark.timeout(600)
def test_checkers_have_nothing_to_say() -> None:
    name = Path(sys.prefix).name
    which = next((which for which in ("tf", "jax") if name.endswith(f"-{which}")), "new")
    if not Path(sys.prefix, "bin", "basedpyright").exists():
        pytest.skip("only the environments with the newest frameworks have the checkers")
    checked = subprocess.run(
        [ROOT / "scripts" / "typing", which], capture_output=True, text=True, timeout=580, check=False
    )
    assert checked.returncode == 0, checked.stdout[-6000:] + checked.stderr[-2000:]
