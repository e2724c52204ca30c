#!/usr/bin/env python3
"""Writes the modules of the package `horovod`: scripts/horovod_modules.py [--check]

When a program runs, `horovod.X` is the module `corro.X`, by a finder that comes before the search for files. Type checkers
and editors know only files: for each public module of `corro` there is one that has all of its names. `--check` writes
nothing, and fails if one is missing, stale or of no module.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORRO = ROOT / "python" / "corro"
HOROVOD = ROOT / "python" / "corro-horovod" / "horovod"

MADE = """# Made by scripts/horovod_modules.py (`make gen`), for tools that read it: a program that imports this module gets the
# module {name} itself.
from {name} import *
"""
# Written by hand.
OURS = Path("__init__.py")


def modules() -> dict[Path, str]:
    """The files there are to be, with their content."""
    wanted = {}
    for file in sorted(CORRO.rglob("*.py")):
        path = file.relative_to(CORRO)
        words = [word for word in path.with_suffix("").parts if word != "__init__"]
        if words and not any(word.startswith("_") for word in words):
            wanted[path] = MADE.format(name=".".join(["corro", *words]))
    return wanted


def main() -> int:
    wanted = modules()
    present = {file.relative_to(HOROVOD): file.read_text() for file in HOROVOD.rglob("*.py")}
    present.pop(OURS)
    wrong = sorted(path for path in {**wanted, **present} if wanted.get(path) != present.get(path))
    if "--check" in sys.argv[1:]:
        if wrong:
            print(f"python/corro-horovod: {', '.join(map(str, wrong))}: run 'make gen'", file=sys.stderr)
        return bool(wrong)
    for path in wrong:
        if path in wanted:
            (HOROVOD / path).parent.mkdir(parents=True, exist_ok=True)
            (HOROVOD / path).write_text(wanted[path])
        else:
            (HOROVOD / path).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
