"""Checks that no file of Rust or Python has more than 600 lines, and no function more than 80; tests don't count.

Run by `make lint`. In Python a function's docstring does not count: it is a part of the reference, with an example.
"""

import ast
import re
import sys
from pathlib import Path

from rust_source import blanked, block_end, crates, sources, without_tests

ROOT = Path(__file__).resolve().parent.parent

FILE_LINES = 600
FUNCTION_LINES = 80

# Where our Python is, but for its tests.
PYTHON = ("python/corro", "python/corro-horovod", "examples", "scripts", "bench")

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


def docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    match function.body[0]:
        case ast.Expr(value=ast.Constant(value=str())) as text:
            return (text.end_lineno or text.lineno) - text.lineno + 1
    return 0


def too_long_python(text: str, name: str) -> list[str]:
    found = [name] if lines(text.rstrip()) > FILE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
            if length > FUNCTION_LINES:
                found.append(f"{name}: {node.name}")
    return found


def main() -> int:
    wrong = []
    for folder in PYTHON:
        for path in sorted((ROOT / folder).rglob("*.py")):
            wrong += too_long_python(path.read_text(), path.relative_to(ROOT).as_posix())
    for crate in crates(ROOT):
        for path in sources(crate):
            wrong += too_long(path, path.relative_to(ROOT).as_posix())
    for line in wrong:
        print(f"sizes: {line} is too long: {FILE_LINES} lines a file, {FUNCTION_LINES} a function", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
