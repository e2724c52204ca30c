"""Checks that no files of a crate need each other in a circle.

Run by `make lint`. A file needs another if it names something of it: by `use`, or by a path that begins with `crate`,
`super`, `self` or a module of its own. Names that a module only passes on (`pub use`) are followed to the file that has
them. What a file declares (`mod x;`) or passes on, it does not need. Tests don't count.

What it does not see: calls of methods. Where the methods of one type are spread over several files, they call each other
in any direction without naming a file, and no circle is reported: `Node` in `corro-agreement/src/node`, `ProcessSet` in
`corro-engine/src/set`. Such a folder is one unit, to be read as a whole.
"""

import re
import sys
from pathlib import Path

from rust_source import blanked, crates, sources, without_tests

ROOT = Path(__file__).resolve().parent.parent

USE = re.compile(r"(?P<visible>\bpub(?:\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]+);")
PATH = re.compile(r"(?<![\w:])((?:crate|super|self|[a-z_][a-z0-9_]*)(?:::\w+)+)")


def module_of(file: Path) -> tuple[str, ...]:
    """The module that a file is, from the crate's root."""
    parts = file.with_suffix("").parts
    return () if parts in (("lib",), ("main",)) else tuple(p for p in parts if p != "mod")


def leaves(tree: str, prefix: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    """What a `use` names: each path, and what it is called here."""
    tree = tree.strip()
    if "{" not in tree:
        path, _, alias = tree.partition(" as ")
        parts = prefix + tuple(p.strip() for p in path.split("::") if p.strip())
        parts = parts[:-1] if parts[-1] == "self" and len(parts) > 1 else parts
        return [(parts, alias.strip() or parts[-1])]
    head, rest = tree.split("{", 1)
    prefix += tuple(p.strip() for p in head.split("::") if p.strip())
    inside, depth, item, found = rest[: rest.rindex("}")], 0, "", []
    for character in inside + ",":
        if character == "," and depth == 0:
            found += leaves(item, prefix) if item.strip() else []
            item = ""
            continue
        depth += {"{": 1, "}": -1}.get(character, 0)
        item += character
    return found


class Crate:
    """The modules of one crate, and what each of them names."""

    def __init__(self, folder: Path) -> None:
        source = folder / "src"
        self.files = {module_of(p.relative_to(source)): p.relative_to(source).as_posix() for p in sources(folder)}
        self.code = {m: without_tests(blanked((source / f).read_text())) for m, f in self.files.items()}
        # What a module calls by a short name because of a `use`, as absolute paths.
        self.aliases: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {m: {} for m in self.files}
        for module, code in self.code.items():
            for use in USE.finditer(code):
                for path, name in leaves(use["tree"]):
                    absolute = self.absolute(module, path)
                    if absolute is not None:
                        self.aliases[module][name] = absolute

    def absolute(self, module: tuple[str, ...], path: tuple[str, ...]) -> tuple[str, ...] | None:
        """A path from the crate's root; `None` for what is not of this crate."""
        here = module
        if path[0] == "crate":
            return path[1:]
        if path[0] in ("self", "super"):
            while path and path[0] in ("self", "super"):
                here, path = (here[:-1] if path[0] == "super" else here), path[1:]
            return here + path
        return here + path if here + path[:1] in self.files else None

    def home(self, path: tuple[str, ...], depth: int = 0) -> tuple[str, ...]:
        """The file that has what this path names."""
        module = path
        while module not in self.files:
            module = module[:-1]
        rest = path[len(module) :]
        if rest and rest[0] in self.aliases[module] and depth < 20:
            return self.home(self.aliases[module][rest[0]] + rest[1:], depth + 1)
        return module

    def needs(self, module: tuple[str, ...]) -> set[tuple[str, ...]]:
        code, needed = self.code[module], set()
        for use in USE.finditer(code):
            if not use["visible"]:
                for path, _ in leaves(use["tree"]):
                    absolute = self.absolute(module, path)
                    if absolute is not None:
                        needed.add(self.home(absolute))
        for found in PATH.finditer(USE.sub("", code)):
            path = tuple(found.group(1).split("::"))
            absolute = self.absolute(module, path)
            if absolute is not None:
                needed.add(self.home(absolute))
        return needed - {module}

    def circles(self) -> list[set[str]]:
        graph = {module: self.needs(module) for module in self.files}
        return [{self.files[m] for m in circle} for circle in strongly_connected(graph) if len(circle) > 1]


def strongly_connected(graph: dict) -> list[list]:
    """Tarjan's algorithm, without recursion."""
    number, low, stack, on_stack, found = {}, {}, [], set(), []
    for root in sorted(graph):
        if root in number:
            continue
        work = [(root, iter(sorted(graph[root])))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in number:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    circle = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        circle.append(member)
                        if member == node:
                            break
                    found.append(circle)
    return found


def main() -> int:
    wrong = [
        f"{folder.name}: these files need each other in a circle: {', '.join(sorted(circle))}"
        for folder in crates(ROOT)
        for circle in Crate(folder).circles()
    ]
    for line in wrong:
        print(f"circles: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
