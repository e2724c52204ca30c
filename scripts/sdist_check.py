"""Checks source packages: scripts/sdist_check.py dist/corro-0.1.0.tar.gz dist/corro_horovod-0.1.0.tar.gz

A package has every file that git knows, but for those that pyproject.toml leaves out, and no other. No file is large, and
none has a path of the machine that it was made on.
"""

import fnmatch
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
HOROVOD = "python/corro-horovod/"
LARGEST_FILE = 400_000
LARGEST_PACKAGE = 3_000_000
# What the tools that build a package add.
ADDED = {"PKG-INFO", "setup.cfg"}


def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(filter(None, listed.stdout.split("\0")))


def left_out() -> list[str]:
    """The patterns of pyproject.toml."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maturin"]["exclude"]
    return [entry if isinstance(entry, str) else entry["path"] for entry in wanted]


def expected(package: str) -> set[str]:
    if package.startswith("corro_horovod-"):
        return {name.removeprefix(HOROVOD) for name in tracked() if name.startswith(HOROVOD)}
    patterns = left_out()
    return {name for name in tracked() if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}


def problems(path: Path) -> list[str]:
    found = []
    held = set()
    here = [str(place).encode() for place in {ROOT, Path.home()} if len(place.parts) > 1]
    if path.stat().st_size > LARGEST_PACKAGE:
        found.append(f"has {path.stat().st_size} bytes")
    with tarfile.open(path) as package:
        for member in package:
            if not member.isfile():
                continue
            name = str(PurePosixPath(*PurePosixPath(member.name).parts[1:]))
            held.add(name)
            if member.size > LARGEST_FILE:
                found.append(f"{name} has {member.size} bytes")
            content = package.extractfile(member).read()
            found += [f"{name} has a path of this machine" for place in here if place + b"/" in content]
    wanted = expected(path.name)
    found += [f"{name} is missing" for name in sorted(wanted - held)]
    extra = {name for name in held - wanted if name not in ADDED and ".egg-info/" not in name}
    found += [f"{name} does not belong there" for name in sorted(extra)]
    return found


def main(paths: list[str]) -> int:
    wrong = [f"{Path(path).name}: {problem}" for path in paths for problem in problems(Path(path))]
    for line in wrong:
        print(f"sdist: {line}", file=sys.stderr)
    return 1 if wrong or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
