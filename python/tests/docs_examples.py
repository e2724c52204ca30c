"""Runs the examples in docstrings, on the ranks of a job: those of all names that a page of docs/api shows.

Every public function and class has one. An example begins where the code of its page ends, and must print what it shows.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# Fronts share functions: each runs once in a job, with the front that comes first.
_done: set[int] = set()


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module offers that can be called: constants and modules explain themselves."""
    for name in module.__all__:
        thing = getattr(module, name)
        if callable(thing):
            yield f"{module.__name__}.{name}", thing


def lacking(modules: list[ModuleType]) -> list[str]:
    """Names that are not documented as they should be, and what each lacks."""
    found = []
    for module in modules:
        offered = [getattr(module, name) for name in module.__all__]
        found += [
            f"{part.__name__} is on no page" for part in offered if inspect.ismodule(part) and part not in modules
        ]
        for name, thing in public(module):
            text = inspect.getdoc(thing) or ""
            if not text or text == inspect.getdoc(type(thing)):
                found.append(f"{name} has no docstring")
            elif "Example:" not in text or ">>> " not in text:
                found.append(f"{name} has no example")
            if inspect.isclass(thing):
                found += [f"{name}.{method} has no docstring" for method in _undocumented(thing)]
    return found


def _undocumented(cls: type) -> Iterator[str]:
    """The public methods of a class that are Corro's own, and documented neither here nor by a framework's class."""
    for owner in cls.__mro__:
        if owner.__module__.split(".")[0] == "corro":
            for name, member in vars(owner).items():
                said = any(getattr(vars(base).get(name), "__doc__", None) for base in cls.__mro__)
                if inspect.isfunction(member) and not name.startswith("_") and not said:
                    yield name


def run(names: list[str], known: dict[str, Any]) -> None:
    """Runs the examples of these modules, all with the names in `known`, and ends at the first that is wrong."""
    modules = [importlib.import_module(name) for name in names]
    missing = lacking(modules)
    assert not missing, "\n".join(missing)
    for module in modules:
        for name, thing in public(module):
            if id(thing) not in _done:
                _done.add(id(thing))
                run_example(name, inspect.getdoc(thing) or "", dict(known))


def run_example(name: str, text: str, known: dict[str, Any]) -> None:
    hvd: Any = known.get("hvd")
    if hasattr(hvd, "init"):
        hvd.init()
    environment = dict(os.environ)
    example = doctest.DocTestParser().get_doctest(text, known, name, None, None)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    os.environ.clear()
    os.environ.update(environment)
    assert not said, "".join(said)
    if hasattr(hvd, "init") and "init(" in text:
        # What the example has asked for must not be there for the next one.
        hvd.shutdown()
