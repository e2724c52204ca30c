"""Runs what the documentation shows: every Python block, every command and every docstring's example, except where the page
says why not.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import docs_examples
import docs_pages
import pytest
from docs_pages import Page

from corro._command import program
from corro._front import checks

# As scripts/python_test sets it.
FRAMEWORK = os.environ.get("CORRO_TEST_FRAMEWORK", "torch")
# A page without a framework is run once, with torch's environment.
PAGES = [
    page for page in docs_pages.all_pages() if page.framework in {FRAMEWORK, "none" if FRAMEWORK == "torch" else ""}
]
SECONDS = 240


def environment() -> dict[str, str]:
    here = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{Path(program()).parent}:{here}:{os.environ['PATH']}",
        "CORRO_TIMEOUT": "60",
        # Where `docs_examples` is.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])),
        "KERAS_BACKEND": os.environ.get("KERAS_BACKEND", "tensorflow"),
    }


def run(command: list[str], folder: Path) -> str:
    """What it prints, both streams; fails the test with it if it fails."""
    job = subprocess.run(
        command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    if job.returncode:
        pytest.fail(f"{' '.join(command)}\nended with {job.returncode}:\n{job.stdout[-4000:]}", pytrace=False)
    return job.stdout


def differs(shown: str, printed: str) -> str | None:
    """What the page shows beside what came; `...` stands for anything."""
    pattern = ".*?".join(
        re.escape(part) for part in "\n".join(line.rstrip() for line in shown.splitlines()).split("...")
    )
    printed = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    if re.fullmatch(pattern, printed, re.DOTALL):
        return None
    return "\n".join(
        difflib.unified_diff(shown.splitlines(), printed.splitlines(), "the page shows", "it prints", lineterm="")
    )


def run_commands(page: Page, folder: Path) -> None:
    for block in page.blocks:
        if block.reason_not_run is not None:
            continue
        if block.file is not None:
            (folder / block.file).write_text(block.text)
        elif block.language == "console":
            for command, shown in docs_pages.commands(block):
                printed = run(["bash", "-c", command], folder)
                if shown and block.compared and (difference := differs(shown, printed)):
                    pytest.fail(f"{page.name}:{block.line}: {command}\n{difference}", pytrace=False)


# A framework may have no such page. pytest would count a test without a page as skipped.
if WITH_COMMANDS := [page for page in PAGES if page.has_commands()]:

    @pytest.mark.timeout(SECONDS + 30)
    @pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
    def test_commands(page: Page, tmp_path: Path) -> None:
        run_commands(page, tmp_path)


# Pages run one after the other in one job: most of what a job takes is the import of the framework.
IN_TURN = """
import runpy, sys
import corro.numpy as hvd
for page in sys.argv[1:]:
    try:
        runpy.run_path(page, run_name="__main__")
    except SystemExit as end:
        assert not end.code, f"{page} ended with {end.code}"
    hvd.shutdown()
"""


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("ranks", sorted({page.ranks for page in PAGES if page.python()}))
def test_python(ranks: int, tmp_path: Path) -> None:
    scripts = []
    for page in PAGES:
        if page.ranks == ranks and (script := page.python()):
            scripts.append(tmp_path / f"page_{page.path.stem}.py")
            scripts[-1].write_text(script)
    driver = tmp_path / "in_turn.py"
    driver.write_text(IN_TURN)
    run([program(), "run", "-np", str(ranks), sys.executable, str(driver), *map(str, scripts)], tmp_path)


def test_pages_that_are_wrong_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_pages, "REPOSITORY", tmp_path)
    page = tmp_path / "page.md"
    for text, word in {
        "```sh\nls\n```\n": "neither run nor said",
        "<!-- not run -->\n```console\n$ ls\n```\n": "needs a reason",
        "<!-- page: rank=2 -->\n": "no setting",
        "```text\npip install corro\n```\n": ":2: a command outside of a console block",
        "text\n\n    cargo build\n": ":3: a command outside of a console block",
        "- a list:\n  ```sh\n  ls\n  ```\n": "neither run nor said",
    }.items():
        page.write_text(text)
        with pytest.raises(ValueError, match=word):
            docs_pages.read(page)
    page.write_text("```text\ncorro run: a rank was lost\n```\n<!-- file: a.py = x = 1 -->\n```console\n$ true\n```\n")
    assert docs_pages.read(page).blocks[1].text == "x = 1\n"
    page.write_text("```python\nx = 1\n```\ntext\n```python\nraise ValueError\n```\n")
    assert docs_pages.read(page).python().splitlines().index("raise ValueError") == 5
    page.write_text("```console\n$ echo a; \\\n  echo b\na\nb\n$ true\n```\n")
    assert docs_pages.commands(docs_pages.read(page).blocks[0]) == [("echo a; echo b", "a\nb"), ("true", "")]
    assert differs("a ... z", "a b\nc z") is None
    assert differs("a ... z", "a b\nc y") is not None


def test_every_package_is_in_the_reference() -> None:
    """A package that says what it offers, by `__all__`, is shown on a page; so its docstrings are checked and run."""
    python = docs_pages.REPOSITORY / "python"
    offering = {
        ".".join(file.parent.relative_to(python).parts)
        for file in (python / "corro").rglob("__init__.py")
        if "\n__all__ = " in file.read_text()
    }
    assert len(offering) > 8
    shown = {name for page in docs_pages.all_pages() for name in page.modules()}
    assert not offering - shown, f"on no page of docs/api: {sorted(offering - shown)}"


def test_every_page_is_in_a_list() -> None:
    """As the site's build asks (`make docs`), which takes too long to be run with every test."""
    docs = docs_pages.REPOSITORY / "docs"
    listed = set()
    for page in docs.rglob("*.md"):
        for block in re.findall(r"```{toctree}(.*?)```", page.read_text(), re.DOTALL):
            listed |= {
                (page.parent / line.strip()).resolve()
                for line in block.splitlines()
                if line.strip()[:1] not in ("", ":")
            }
    pages = {page.with_suffix("").resolve() for page in docs.rglob("*.md") if "_build" not in page.parts}
    assert sorted(str(page.relative_to(docs)) for page in pages - listed) == ["index"]


def test_links_of_the_readme_are_whole() -> None:
    """It is the page of both packages on PyPI, from which a relative link leads nowhere."""
    for readme in ("README.md", "python/corro-horovod/README.md"):
        text = (docs_pages.REPOSITORY / readme).read_text()
        links = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
        assert links
        assert not [link for link in links if not link.startswith("https://")], readme


def test_packages_say_the_same_of_python() -> None:
    """`corro-horovod` runs where `corro` does."""

    def told(file: str) -> list[str]:
        text = (docs_pages.REPOSITORY / file).read_text()
        return re.findall(r'^(?:requires-python = .*|    "Programming Language :: Python.*)$', text, re.MULTILINE)

    assert len(told("pyproject.toml")) > 2
    assert told("pyproject.toml") == told("python/corro-horovod/pyproject.toml")


def test_names_without_an_example_are_found() -> None:
    def nothing() -> None: ...

    def words() -> None:
        """Says something."""

    def right() -> None:
        """Shows something.

        Example:
            >>> 1 + 1
            2
        """

    class Half:
        """Has a method.

        Example:
            >>> 1
            1
        """

        def method(self) -> None: ...

    Half.__module__ = "corro.made_up"
    names = {
        "nothing": nothing,
        "words": words,
        "right": right,
        "Half": Half,
        "constant": 3,
        "part": ModuleType("part"),
    }
    module = ModuleType("made_up")
    module.__dict__.update(names, __all__=list(names))
    assert docs_examples.lacking([module]) == [
        "part is on no page",
        "made_up.nothing has no docstring",
        "made_up.words has no example",
        "made_up.Half.method has no docstring",
    ]
    docs_examples.run_example("right", right.__doc__ or "", {})
    with pytest.raises(AssertionError, match="Expected:"):
        docs_examples.run_example("wrong", (right.__doc__ or "").replace("2", "3"), {})


def test_messages_that_troubleshooting_explains_exist() -> None:
    """A message that is changed in the source is changed on the page, too."""
    sources = "\n".join(
        re.sub(r'\\\n\s*|"\s*\n\s*f?"', "", file.read_text())
        for folder in ("crates", "python/corro")
        for file in (docs_pages.REPOSITORY / folder).rglob("*")
        if file.suffix in {".rs", ".py"} and "tests" not in file.parts
    )
    page = (docs_pages.REPOSITORY / "docs/troubleshooting.md").read_text()
    messages = [
        message
        for line in page.splitlines()
        if line.startswith("| `")
        for message in re.findall(r"`([^`]+)`", line.split(" | ")[0])
    ]
    assert len(messages) > 20
    missing = [message for message in messages if message not in sources]
    assert not missing, f"docs/troubleshooting.md explains what nobody says: {missing}"
    # And what the checks of a training say is explained.
    silent = [advice for advice in checks._ADVICE.values() if not any(advice.startswith(m) for m in messages)]
    assert not silent, f"docs/troubleshooting.md does not explain: {silent}"
