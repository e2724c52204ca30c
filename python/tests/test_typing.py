"""Type checkers in their strict modes read what users write: the examples, and programs with every public name."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import docs_pages
import pytest

ROOT = Path(__file__).parent.parent.parent
USERS = ROOT / "python" / "tests" / "typing"
# The programs, what they call the modules, and the modules.
PROGRAMS = {
    "torch": [
        ("user_of_torch", "hvd", "corro.torch"),
        ("user_of_torch", "hvd.elastic", "corro.torch.elastic"),
        ("user_of_torch", "hvd.sparse", "corro.torch.sparse"),
        ("user_of_corro", "hvd", "corro.numpy"),
        ("user_of_corro", "corro", "corro"),
        ("user_of_corro", "data", "corro.data"),
        ("user_of_corro", "ps", "corro.ps"),
        ("user_of_corro", "runner", "corro.runner"),
        ("user_of_lightning", "ours", "corro.lightning"),
        ("user_of_mxnet", "hvd", "corro.mxnet"),
        ("user_of_ray", "corro.ray", "corro.ray"),
        ("user_of_ray", "elastic", "corro.ray.elastic"),
        ("user_of_ray", "elastic_v2", "corro.ray.elastic_v2"),
        ("user_of_ray", "ray_logger", "corro.ray.ray_logger"),
        ("user_of_ray", "runner", "corro.ray.runner"),
        ("user_of_ray", "train", "corro.ray.train"),
        ("user_of_ray", "utils", "corro.ray.utils"),
        ("user_of_ray", "worker", "corro.ray.worker"),
        ("user_of_spark", "spark", "corro.spark"),
        ("user_of_spark", "backend", "corro.spark.common.backend"),
        ("user_of_spark", "compute_worker", "corro.spark.tensorflow.compute_worker"),
        ("user_of_spark", "datamodule", "corro.spark.common.datamodule"),
        ("user_of_spark", "jax", "corro.spark.jax"),
        ("user_of_spark", "keras", "corro.spark.keras"),
        ("user_of_spark", "lightning", "corro.spark.lightning"),
        ("user_of_spark", "loaders", "corro.spark.data_loaders.pytorch_data_loaders"),
        ("user_of_spark", "on_torch", "corro.spark.torch"),
        ("user_of_spark", "store", "corro.spark.common.store"),
        ("user_of_spark", "task", "corro.spark.task"),
        ("user_of_spark", "util", "corro.spark.common.util"),
    ],
    "tensorflow": [
        ("user_of_tensorflow", "hvd", "corro.tensorflow"),
        ("user_of_tensorflow", "hvd.elastic", "corro.tensorflow.elastic"),
        ("user_of_keras", "hvd", "corro.keras"),
        ("user_of_keras", "hvd.callbacks", "corro.keras.callbacks"),
        ("user_of_keras", "hvd.elastic", "corro.keras.elastic"),
        ("user_of_keras", "hvd.layers", "corro.keras.layers"),
        ("user_of_keras", "tf_hvd", "corro.tensorflow.keras"),
        ("user_of_keras", "tf_hvd.callbacks", "corro.tensorflow.keras.callbacks"),
        ("user_of_keras", "tf_hvd.elastic", "corro.tensorflow.keras.elastic"),
        ("user_of_keras", "tf_hvd.layers", "corro.tensorflow.keras.layers"),
    ],
    "jax": [
        ("user_of_jax", "hvd", "corro.jax"),
        ("user_of_jax", "hvd.data", "corro.jax.data"),
        ("user_of_jax", "hvd.elastic", "corro.jax.elastic"),
    ],
    # Their programs need no framework to be looked through: that is done with torch.
    "spark": [],
    "ray": [],
}
FRAMEWORK = os.environ.get("CORRO_TEST_FRAMEWORK", "torch")
# What every front has is used with one of them.
SHARED = {"user_of_keras tf_hvd"}


def public(module: str) -> set[str]:
    """A module's `__all__`, as it is written: the framework that it needs may not be here."""
    path = ROOT / "python" / module.replace(".", "/")
    for statement in ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name("__all__")], value=names):
                return set(ast.literal_eval(names))
    raise ValueError(f"{module} has no __all__")


# pytest would count a test without a program as skipped.
if PROGRAMS[FRAMEWORK]:

    @pytest.mark.parametrize(("program", "called", "module"), PROGRAMS[FRAMEWORK])
    def test_every_public_name_is_used(program: str, called: str, module: str) -> None:
        attributes = [
            node
            for node in ast.walk(ast.parse((USERS / f"{program}.py").read_text()))
            if isinstance(node, ast.Attribute)
        ]
        used = {node.attr for node in attributes if ast.unparse(node.value) == called}
        wanted = public(module)
        if f"{program} {called}" in SHARED:
            wanted -= public("corro._front.basics")
        assert wanted - used == set()


def test_every_module_of_the_reference_is_used() -> None:
    used = {module for programs in PROGRAMS.values() for *_, module in programs}
    assert {module for page in docs_pages.all_pages() for module in page.modules()} - used == set()


@pytest.mark.timeout(600)
def test_checkers_have_nothing_to_say() -> None:
    name = Path(sys.prefix).name
    which = next((which for which in ("tf", "jax", "spark", "ray") if name.endswith(f"-{which}")), "new")
    if not Path(sys.prefix, "bin", "basedpyright").exists():
        pytest.skip("only the environments with the newest frameworks have the checkers")
    checked = subprocess.run(
        [ROOT / "scripts" / "typing", which], capture_output=True, text=True, timeout=580, check=False
    )
    assert checked.returncode == 0, checked.stdout[-6000:] + checked.stderr[-2000:]
