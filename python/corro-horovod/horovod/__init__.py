"""Horovod's name for Corro: `horovod.X` is the very module `corro.X`, with the same engine and the same state."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corro import runner as runner
    from corro.runner import run as run

# The version of Horovod whose interface this is.
__version__ = "0.28.1"

_OURS = __name__ + "."


def _name_of(name: str) -> str:
    """How Corro calls `horovod.X`."""
    return "corro." + name.removeprefix(_OURS)


class _SameModule(Loader):
    """Gives an existing module a second name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_name_of(spec.name))
        # The import system is about to write the new name's spec into the module; `exec_module` puts its own back.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, name: str) -> CodeType | None:
        """What `python -m horovod.X` runs."""
        found = importlib.util.find_spec(_name_of(name))
        return found.loader.get_code(found.name) if found and isinstance(found.loader, InspectLoader) else None


class _Finder(MetaPathFinder):
    """Finds `horovod.X` wherever there is a `corro.X`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(_OURS):
            return None
        found = importlib.util.find_spec(_name_of(name))
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(name, _SameModule(), origin=found.origin, is_package=is_package)


sys.meta_path.insert(0, _Finder())


def __getattr__(name: str) -> Any:
    # As in Horovod, `import horovod` is enough for both; but most programs need neither.
    if name in ("run", "runner"):
        runner = importlib.import_module("horovod.runner")
        return runner.run if name == "run" else runner
    raise AttributeError(f"module 'horovod' has no attribute {name!r}")
