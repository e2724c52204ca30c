"""The commands: both are the `corro` program that the wheel installs beside the interpreter."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def program() -> str:
    """Where the `corro` program is."""
    places = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    for place in places:
        path = os.path.join(place, "corro")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("corro")
    if found is None:
        raise RuntimeError(f"the program `corro` is neither in {places[0]} nor in PATH: reinstall the corro wheel.")
    return found


def horovodrun() -> None:
    """`horovodrun`: the same program, which takes Horovod's flags under that name."""
    os.execv(program(), ["horovodrun", *sys.argv[1:]])
