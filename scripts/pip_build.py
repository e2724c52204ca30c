"""What pip calls to build the package from its sources (`backend-path` in pyproject.toml): maturin, which makes the library,
and before it cargo, which makes the `corro` program. The wheel brings the program as a script, with its man pages.

`scripts/wheel` builds the wheels that are published; it does the same for an old glibc.
"""

import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import build_sdist, get_requires_for_build_editable, get_requires_for_build_sdist, get_requires_for_build_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# `data` in pyproject.toml.
DATA = Path("target/wheel-data")


def _make_data() -> None:
    """The program and its man pages, where maturin looks for them."""
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "corro-launch", "--bin", "corro"], check=True)
    shutil.rmtree(DATA, ignore_errors=True)
    scripts, pages = DATA / "scripts", DATA / "data/share/man/man1"
    for folder in (scripts, pages):
        folder.mkdir(parents=True)
    shutil.copy(Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release/corro", scripts)
    for page in Path("docs/man").glob("*.1"):
        shutil.copy(page, pages)
    if strip := shutil.which("strip"):
        subprocess.run([strip, scripts / "corro"], check=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _make_data()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _make_data()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    # maturin wants the folder to be there, also where it only reads the version.
    DATA.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel
