"""Checks that no file of Rust has more than 600 lines, and no function more than 80; tests and tables don't count.

Run by `make lint`. A table is a file or function that says the same kind of thing many times over: `TABLES` names them.
"""

import re
import sys
from pathlib import Path

from rust_source import blanked, block_end, crates, sources, without_tests

ROOT = Path(__file__).resolve().parent.parent

FILE_LINES = 600
FUNCTION_LINES = 80

TABLES = {
    "crates/corro-core/src/config.rs",  # every environment variable, once
}

FUNCTION = re.compile(r"\bfn\s+(\w+)")


def lines(code: str) -> int:
    return code.count("\n") + 1


def code_lines(text: str) -> int:
    """The lines of a file that are not tests. Comments count: they are to be read as well."""
    tested = without_tests(blanked(text)).rstrip()
    return lines(tested) if tested else 0


def too_long(path: Path, name: str) -> list[str]:
    text = path.read_text()
    code = without_tests(blanked(text))
    found = []
    if code_lines(text) > FILE_LINES:
        found.append(name)
    for function in FUNCTION.finditer(code):
        body = code[function.start() : block_end(code, function.end())]
        if lines(body) > FUNCTION_LINES:
            found.append(f"{name}: {function[1]}")
    return found


def main() -> int:
    wrong = []
    for crate in crates(ROOT):
        for path in sources(crate):
            name = path.relative_to(ROOT).as_posix()
            if name not in TABLES:
                wrong += too_long(path, name)
    for line in wrong:
        print(f"sizes: {line} is too long: {FILE_LINES} lines a file, {FUNCTION_LINES} a function", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
