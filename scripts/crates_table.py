"""Checks that the table of crates in CONTRIBUTING.md is true: the crates, their floors, and where they may be unsafe; and
that ARCHITECTURE.md's table and picture have every crate of the house, on its floor.

Run by `make lint`. The last column is `forbidden` (the compiler sees to it), `everywhere`, or a list of files and folders
of the crate's `src`. Each of them must have an `#[expect(unsafe_code, ..)]`, and nothing else may; tests don't count.
"""

import re
import sys
from pathlib import Path

from floors import FLOORS
from rust_source import blanked, crates, sources, without_tests

ROOT = Path(__file__).resolve().parent.parent

ROW = re.compile(r"^\| (?P<floor>\d+|-) \| `(?P<crate>[\w-]+)` \| .+ \| (?P<unsafe>[^|]+) \|$", re.MULTILINE)
# Of the other table; and of the picture, in which the floors come before their crates.
SHORT_ROW = re.compile(r"^\| (?P<floor>\d+) \| `(?P<crate>[\w-]+)` \|", re.MULTILINE)
DRAWN = re.compile(r">floor (?P<floor>\d+)<|class=\"n\"[^>]*>(?P<crate>corro-\w+)<")
EXCEPTION = re.compile(r"\b(?:expect|allow)\(\s*unsafe_code\b")
FORBIDDEN = "#![forbid(unsafe_code)]"


def unsafe_files(crate: Path) -> set[str]:
    """The files of a crate that ask for unsafe code, as the table names them: without `src/` and `.rs`."""
    return {
        path.relative_to(crate / "src").with_suffix("").as_posix()
        for path in sources(crate)
        if EXCEPTION.search(without_tests(blanked(path.read_text())))
    }


def covers(entry: str, file: str) -> bool:
    return file.startswith(entry) if entry.endswith("/") else file == entry


def wrong_about(crate: Path, said: str) -> list[str]:
    """What the last column says about a crate and is not so."""
    found = unsafe_files(crate)
    forbids = FORBIDDEN in (crate / "src/lib.rs").read_text()
    if (said == "forbidden") != forbids:
        return [f"says {said!r}, and src/lib.rs has {'' if forbids else 'no '}{FORBIDDEN}"]
    if said in ("forbidden", "everywhere"):
        return ["says 'everywhere', and nothing is unsafe"] if said == "everywhere" and not found else []
    entries = re.findall(r"`([^`]+)`", said)
    wrong = [f"does not name {file}.rs" for file in sorted(found) if not any(covers(entry, file) for entry in entries)]
    wrong += [
        f"names {entry}, which has no exception" for entry in entries if not any(covers(entry, file) for file in found)
    ]
    return wrong


def table(text: str) -> dict[str, int]:
    """The crates of ARCHITECTURE.md's table, and their floors."""
    return {row["crate"]: int(row["floor"]) for row in SHORT_ROW.finditer(text)}


def picture(text: str) -> dict[str, int]:
    """The crates of the picture, and their floors."""
    found, floor = {}, -1
    for match in DRAWN.finditer(text):
        if match["crate"]:
            found[match["crate"]] = floor
        else:
            floor = int(match["floor"])
    return found


def wrong_floors(said: dict[str, int]) -> list[str]:
    """What a table or a picture of the whole house has wrong. What is not shipped need not be there."""
    house = {crate: floor for crate, floor in FLOORS.items() if floor < FLOORS["corro-testing"]}
    wrong = [f"{crate} is on floor {floor}, and missing" for crate, floor in house.items() if crate not in said]
    wrong += [f"{crate} is not a crate of the house" for crate in said if crate not in house]
    wrong += [
        f"{crate} is on floor {house[crate]}, not {floor}"
        for crate, floor in said.items()
        if house.get(crate, floor) != floor
    ]
    return wrong


def main() -> int:
    rows = {row["crate"]: row for row in ROW.finditer((ROOT / "CONTRIBUTING.md").read_text())}
    folders = {folder.name: folder for folder in crates(ROOT)}
    wrong = [f"{name} has no row" for name in sorted(folders.keys() - rows.keys())]
    wrong += [f"{name} is not a crate" for name in sorted(rows.keys() - folders.keys())]
    for name in sorted(folders.keys() & rows.keys()):
        floor, said = rows[name]["floor"], rows[name]["unsafe"].strip()
        if floor != "-" and int(floor) != FLOORS.get(name):
            wrong.append(f"{name} is on floor {FLOORS.get(name)}, not {floor}")
        wrong += [f"{name}'s row {problem}" for problem in wrong_about(folders[name], said)]
    wrong = [f"CONTRIBUTING.md: {line}" for line in wrong]
    for file, read in (("ARCHITECTURE.md", table), ("docs/architecture.svg", picture)):
        wrong += [f"{file}: {line}" for line in wrong_floors(read((ROOT / file).read_text()))]
    for line in wrong:
        print(f"crates_table: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
