"""Reads Rust source as far as the checks of `make lint` need it: no parser, but comments, strings and tests are told apart.

Used by `circles.py`, `crates_table.py` and `sizes.py`.
"""

import re
from pathlib import Path

_TOKEN = re.compile(
    r"""//[^\n]*
    |/\*.*?\*/
    |b?r(?P<hash>\#*)".*?"(?P=hash)
    |b?"(?:\\.|[^"\\])*"
    |b?'(?:\\.[^']*|[^'\\\n])'
    """,
    re.VERBOSE | re.DOTALL,
)


def blanked(text: str) -> str:
    """The text with comments and the insides of literals replaced by spaces, so that every other character stays where it was."""
    return _TOKEN.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def block_end(code: str, start: int) -> int:
    """Where the braces that open at or after `start` are closed; the end of the statement if there are none."""
    braces = brackets = 0
    for at in range(start, len(code)):
        if code[at] == "{":
            braces += 1
        elif code[at] == "}":
            braces -= 1
            if braces == 0:
                return at + 1
        elif code[at] in "([":
            brackets += 1
        elif code[at] in ")]":
            brackets -= 1
        elif code[at] == ";" and braces == brackets == 0:
            return at + 1
    return len(code)


def without_tests(code: str) -> str:
    """Blanked code without what is compiled for tests only."""
    while found := re.search(r"#\[cfg\((?:all\()?test\b[^\]]*\]", code):
        end = block_end(code, found.end())
        code = code[: found.start()] + re.sub(r"[^\n]", " ", code[found.start() : end]) + code[end:]
    return code


def is_test(path: Path) -> bool:
    """Whether a file holds nothing but tests."""
    return path.stem == "tests" or "tests" in path.parts


def sources(crate: Path) -> list[Path]:
    """The crate's own files, tests left out."""
    source = crate / "src"
    return sorted(path for path in source.rglob("*.rs") if not is_test(path.relative_to(crate)))


def crates(root: Path) -> list[Path]:
    """The folders of all crates of the house."""
    return sorted(path.parent for path in root.glob("crates/*/Cargo.toml"))
