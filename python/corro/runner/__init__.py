"""`corro.run`: a Python function as a job of several processes.

The function travels to the workers, and their results travel back, as cloudpickle's bytes through the job's own store,
to which nobody is admitted who cannot prove the job's secret. Everything else is what `corro run` does: the parameters
become its flags.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import cloudpickle

from corro import _native
from corro._command import program
from corro.runner._flags import asked, given, watching
from corro.runner._results import JobFailed, interpret

__all__ = ["JobFailed", "run"]


T = TypeVar("T")


def run(
    func: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | Iterable[str] | None = None,
    network_interfaces: str | Iterable[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    env: Mapping[str, str] | None = None,
    watch: bool = False,
    page: bool | str = False,
    record: str | os.PathLike[str] | None = None,
    report: bool | str | os.PathLike[str] = False,
    logdir: str | os.PathLike[str] | None = None,
) -> list[T]:
    """Calls `func(*args, **kwargs)` in `num_proc` processes and gives their results in the order of ranks.

    Parameters mean what the flags of the same name mean to `corro run`; `slots` is `--slots-per-host`, and `env` has
    variables for the workers on top of this process's own. `executable` is the Python of the workers. `page=True` serves
    the live page and prints its link, `record` and `logdir` name a file and a folder, `report=True` says at the end where
    the time went: see docs/watching.md.

    Raises `JobFailed`, a `RuntimeError`, if a process fails, naming its rank. The exception that `func` raised there is its
    cause; a notebook shows that one only, as it looked in the worker.

    Example:
        >>> import corro
        >>> def train(rate):
        ...     import corro.numpy as hvd
        ...     hvd.init()
        ...     return hvd.rank(), rate
        >>> corro.run(train, args=(0.1,), num_proc=2)
        [(0, 0.1), (1, 0.1)]
    """
    num_proc = _alias("np", np, "num_proc", num_proc)
    min_num_proc = _alias("min_np", min_np, "min_num_proc", min_num_proc)
    max_num_proc = _alias("max_np", max_np, "max_num_proc", max_num_proc)
    network_interfaces = _alias("network_interface", network_interface, "network_interfaces", network_interfaces)
    if hosts is not None and hostfile is not None:
        raise ValueError("hosts and hostfile were both given: give only one of them.")
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi were both given: give only one of them.")
    if isinstance(network_interfaces, Iterable) and not isinstance(network_interfaces, str):
        network_interfaces = ",".join(network_interfaces)
    flags = [
        *given("--num-proc", num_proc),
        *given("--min-num-proc", min_num_proc),
        *given("--max-num-proc", max_num_proc),
        *given("--slots-per-host", slots),
        *given("--reset-limit", reset_limit),
        *(["--blacklist-cooldown-range", *map(str, cooldown_range)] if cooldown_range is not None else []),
        *given("--hosts", hosts),
        *given("--hostfile", hostfile),
        *given("--host-discovery-script", host_discovery_script),
        *given("--start-timeout", start_timeout),
        *given("--ssh-port", ssh_port),
        *given("--ssh-identity-file", ssh_identity_file),
        *given("--output-filename", output_filename),
        *given("--network-interfaces", network_interfaces),
        *given("--mpi-args", mpi_args),
    ]
    flags += [*watching(page, record, report, logdir), *asked("--watch", watch)]
    switches = {"--disable-cache": disable_cache, "--verbose": verbose, "--gloo": use_gloo, "--mpi": use_mpi}
    flags += [flag for flag, wanted in switches.items() if wanted]

    results, failure = _native.start_job(
        {
            "flags": flags,
            "command": [executable or sys.executable, "-m", "corro.runner.worker"],
            "agent": [program(), "agent"],
            "payload": cloudpickle.dumps((func, tuple(args), dict(kwargs or {}))),
            "variables": _variables(env or {}),
        }
    )
    return interpret(results, failure, "corro.run")


def _variables(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """What workers need to import what this program can: functions are pickled by reference where they have a module."""
    paths = [os.path.abspath(path) for path in sys.path if path and os.path.isdir(path)]
    ours = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONUNBUFFERED": "1"}
    return [(name, str(value)) for name, value in {**ours, **env}.items()]


def _alias(old: str, old_value: Any, new: str, new_value: Any) -> Any:
    if old_value is None:
        return new_value
    warnings.warn(f"{old} is deprecated: use {new}.", DeprecationWarning, stacklevel=3)
    return old_value
