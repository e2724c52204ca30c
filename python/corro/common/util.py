"""Small helpers that scripts import from `horovod.common.util`."""

from __future__ import annotations

import functools
import importlib.util
import os
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from corro._errors import HorovodVersionMismatchError, get_version_mismatch_message
from corro._front import arguments, basics
from corro._front.process_sets import global_process_set

P = ParamSpec("P")
T = TypeVar("T")


def _cache(f: Callable[P, T]) -> Callable[P, T]:
    """`f`, which is called once for each list of arguments. Private by its name, but programs decorate with it."""
    results: dict[Any, T] = {}
    lock = threading.RLock()

    @functools.wraps(f)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        key = (args, frozenset(kwargs.items()))
        with lock:
            if key not in results:
                results[key] = f(*args, **kwargs)
            return results[key]

    return wrapper


def get_ext_suffix() -> str:
    """How the file names of native modules end."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Where a native module beside the Python file `pkg_path` would be."""
    directory = os.path.join(os.path.dirname(pkg_path), *args[:-1])
    return os.path.join(directory, args[-1] + get_ext_suffix())


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """`ImportError` if a native module is missing. Corro has a single one, which was loaded to get here."""
    if importlib.util.find_spec("corro._native") is None:
        raise ImportError(f"{ext_name} has not been built: reinstall the corro wheel.")


# The import that tells whether a framework is there, by the names Horovod gives its extensions.
_FRAMEWORKS = {"tensorflow": "tensorflow", "torch": "torch", "pytorch": "torch", "mxnet": "mxnet"}


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the front for a framework can be used: Corro has it, and the framework is installed."""
    framework = _FRAMEWORKS.get(ext_base_name)
    fronts = [importlib.util.find_spec(name) for name in (f"corro.{framework}", str(framework)) if framework]
    return len(fronts) == 2 and all(spec is not None for spec in fronts)


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    return bool(basics.cuda_built() or basics.rocm_built())


def mpi_built(verbose: bool = False) -> bool:
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    return bool(basics.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return basics.ccl_built()


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables, and puts them back. None leaves a variable alone."""
    wanted = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def split_list(items: list[T], n: int) -> list[list[T]]:
    """`n` consecutive parts of nearly equal length, longer ones first."""
    parts, start = [], 0
    for length in arguments.rows_per_rank(len(items), n):
        parts.append(items[start : start + length])
        start += length
    return parts


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def is_iterable(x: Any) -> bool:
    return isinstance(x, Iterable)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is `target` (as `a.b.c`) or newer."""
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError("versions must be strings.")
    if len(target.split(".")) != 3:
        raise ValueError(f"the target version must look like 1.2.3, not {target!r}.")
    return _release(ver) >= _release(target)


def _release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, `2.15.0+cu130` as (2, 15, 0)."""
    numbers = []
    for part in version.split("+", maxsplit=1)[0].split(".")[:3]:
        digits = "".join(char if char.isdigit() else " " for char in part).split(" ")[0]
        numbers.append(int(digits or 0))
    return tuple(numbers + [0] * (3 - len(numbers)))


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """One wheel serves all versions of a framework, so there is nothing that could differ; a given error is passed on."""
    if exception is not None:
        raise HorovodVersionMismatchError(name, version, version) from exception


def get_average_backwards_compatibility_fun(ops: Any) -> Callable[[int | None, bool | None], int]:
    """The rule that makes one reduce op out of `op` and `average`."""
    return lambda op, average: arguments.reduction(op, average, global_process_set)


def warn_version_mismatch(name: str, version: str, installed_version: str) -> None:
    warnings.warn(get_version_mismatch_message(name, version, installed_version), stacklevel=2)
