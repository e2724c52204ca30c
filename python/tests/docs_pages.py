"""Reads the documentation as a list of things to run. No framework is imported here.

A page says how it is run in comments that readers do not see:

    <!-- page: framework=torch ranks=2 -->    with which environment, and on how many ranks its Python blocks run
    <!-- file: train.py -->                   the next block is a file, for commands further down
    <!-- file: train.py = import ... -->      a file of one line, where readers have one of their own
    <!-- not run: needs two servers -->       the next block is only shown, for this reason
    <!-- not compared -->                     the output below a command is an example
    <!-- before: model = ... -->              Python for the blocks below that a reader does not need to see

Python blocks of a page run in order, as one script, and after them the examples of the modules that it shows (`automodule`).
Lines that begin with `$ ` in `console` blocks run in bash, in a folder with the page's files, one after the other; what is
shown below them must be what they print, if the comment above does not say otherwise. A command in a block of another kind
would not be run, and so is an error.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
# Languages of blocks that are shown and never run.
SHOWN = {"", "text", "yaml", "toml", "json"}
RUN = {"python", "console"}
BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
# What people type. `corro run: ` begins what the launcher says.
COMMAND = re.compile(r"(\$|pip|python3?|cargo|make|horovodrun|corro(?! \w+: )) ")
SHOWN_MODULE = re.compile(r"^\.\. automodule:: (\S+)$", re.MULTILINE)
COMMENT = re.compile(r"<!--\s*(page|file|not run|not compared|before)(?::\s*(.*?))?\s*-->", re.DOTALL)


@dataclass
class Block:
    """A fenced block, with what the comment above it says."""

    language: str
    text: str
    line: int
    file: str | None = None
    reason_not_run: str | None = None
    compared: bool = True


@dataclass
class Page:
    path: Path
    framework: str = "torch"
    ranks: int = 1
    blocks: list[Block] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.path.relative_to(REPOSITORY))

    def has_commands(self) -> bool:
        return any(block.language == "console" and block.reason_not_run is None for block in self.blocks)

    def python(self) -> str:
        """The blocks that are one script, each at the line where it stands in the page, so that errors name that line."""
        lines: list[str] = []
        for block in self.blocks:
            if block.language == "python" and block.file is None and block.reason_not_run is None:
                lines += [""] * (block.line - len(lines))
                lines += block.text.splitlines()
        if modules := self.modules():
            lines += ["import docs_examples", f"docs_examples.run({modules!r}, dict(globals()))"]
        return "\n".join(lines) + "\n" if lines else ""

    def modules(self) -> list[str]:
        """The modules whose docstrings the page shows."""
        return [name for block in self.blocks for name in SHOWN_MODULE.findall(block.text)]


def set_up(page: Page, settings: str) -> None:
    for setting in settings.split():
        key, _, value = setting.partition("=")
        if key == "framework" and value in {"none", "torch", "tensorflow", "jax", "mxnet", "spark", "ray"}:
            page.framework = value
        elif key == "ranks":
            page.ranks = int(value)
        else:
            raise ValueError(f"{page.name}: {setting!r} is no setting of a page")


def read(path: Path) -> Page:
    """Raises ValueError, with the line, for what the rules above do not cover."""
    text = path.read_text()
    page = Page(path)
    for match in COMMENT.finditer(text):
        if match[1] == "page":
            set_up(page, match[2] or "")
    previous = 0
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        language = match["language"].strip()
        block = Block(language, textwrap.dedent(match["text"]) if match["indent"] else match["text"], line)
        for comment in COMMENT.finditer(text, previous, match.start()):
            heed(comment, page, block)
        refuse_commands(page, text[previous : match.start()], text.count("\n", 0, previous) + 1)
        previous = match.end()
        if language in SHOWN and block.file is None:
            refuse_commands(page, "\n".join(f"    {shown}" for shown in block.text.splitlines()), line + 1)
        known = (
            block.file is not None
            or block.reason_not_run is not None
            or language in SHOWN | RUN
            or language.startswith("{")  # a directive of the site
        )
        if not known:
            raise ValueError(f"{page.name}:{line}: {language!r} is neither run nor said not to be, and why")
        page.blocks.append(block)
    refuse_commands(page, text[previous:], text.count("\n", 0, previous) + 1)
    return page


def heed(comment: re.Match[str], page: Page, block: Block) -> None:
    """What a comment says about the block below it."""
    line = comment.string.count("\n", 0, comment.start()) + 1
    if comment[1] == "file":
        name, own, content = comment[2].partition(" = ")
        if own:
            page.blocks.append(Block("", content + "\n", line, file=name))
        else:
            block.file = name
    elif comment[1] == "not run":
        if not comment[2]:
            raise ValueError(f"{page.name}:{block.line}: 'not run' needs a reason")
        block.reason_not_run = comment[2]
    elif comment[1] == "not compared":
        block.compared = False
    elif comment[1] == "before":
        page.blocks.append(Block("python", comment[2] + "\n", line))


def refuse_commands(page: Page, text: str, first: int) -> None:
    """Raises for a command in an indented line, which a page shows as code."""
    for number, line in enumerate(COMMENT.sub(_blank, text).splitlines(), first):
        if line.startswith("    ") and COMMAND.match(line.strip()):
            raise ValueError(f"{page.name}:{number}: a command outside of a console block is not run: {line.strip()}")


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with what is shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (found[-1][0][:-1] + line.strip(), found[-1][1])
        elif found:
            found[-1][1].append(line)
        else:
            raise ValueError(f"line {block.line}: a console block begins with '$ '")
    return [(command, "\n".join(output).strip()) for command, output in found]


def all_pages() -> list[Page]:
    paths = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    return [read(path) for path in paths if "_build" not in path.parts]
