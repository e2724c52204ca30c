"""`corro.run`: a Python function as a job of several processes.

The function travels to the workers, and their results travel back, as cloudpickle's bytes through the job's own store,
to which nobody is admitted who cannot prove the job's secret.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from corro import _native
from corro._command import program
from corro.runner.common.util.hosts import parse_host_files

__all__ = ["run"]


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
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
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls `func(*args, **kwargs)` in `num_proc` processes and gives their results in the order of ranks.

    Raises `RuntimeError`, naming the rank, if a process fails.
    """
    num_proc = _alias("np", np, "num_proc", num_proc)
    min_num_proc = _alias("min_np", min_np, "min_num_proc", min_num_proc)
    max_num_proc = _alias("max_np", max_np, "max_num_proc", max_num_proc)
    network_interfaces = _alias("network_interface", network_interface, "network_interfaces", network_interfaces)
    if hosts is not None and hostfile is not None:
        raise ValueError("hosts and hostfile were both given: give only one of them.")
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi were both given: give only one of them.")
    if host_discovery_script is not None or min_num_proc is not None:
        raise NotImplementedError("corro.run cannot start elastic jobs yet; start them with `corro run`.")
    if hostfile is not None:
        hosts = parse_host_files(hostfile)

    call = cloudpickle.dumps((func, tuple(args), dict(kwargs or {})))
    results, failure = _native.start_job(
        {
            "command": [executable or sys.executable, "-m", "corro.runner.worker"],
            "size": num_proc,
            "hosts": hosts,
            "agent": [program(), "agent"],
            "payload": call,
            "variables": _variables(),
            "interfaces": network_interfaces.split(",") if network_interfaces else [],
            "start_timeout": start_timeout,
            "output_directory": output_filename,
            "verbose": bool(verbose),
        }
    )
    if failure is not None:
        raise RuntimeError(f"corro.run failed: {failure}")
    return [cloudpickle.loads(result) if result is not None else None for result in results]


def _variables() -> list[tuple[str, str]]:
    """What workers need to import what this program can: functions are pickled by reference where they have a module."""
    paths = [os.path.abspath(path) for path in sys.path if path and os.path.isdir(path)]
    return [("PYTHONPATH", os.pathsep.join(dict.fromkeys(paths))), ("PYTHONUNBUFFERED", "1")]


def _alias(old: str, old_value: Any, new: str, new_value: Any) -> Any:
    if old_value is None:
        return new_value
    warnings.warn(f"{old} is deprecated: use {new}.", DeprecationWarning, stacklevel=3)
    return old_value
