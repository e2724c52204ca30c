"""Starting a command by MPI's own launcher. Corro does not need it; ranks find each other under it all the same."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corro.runner.common.util.hosts import parse_hosts_and_slots
from corro.runner.common.util.settings import Settings


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Whether there is an `mpirun` that we know."""
    return any(known(env) for known in (is_open_mpi, is_spectrum_mpi, is_mpich, is_intel_mpi))


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    return any(word in _version(env) for word in ("Open MPI", "OpenRTE", "PRRTE"))


def is_spectrum_mpi(env: Mapping[str, str] | None = None) -> bool:
    return "IBM Spectrum MPI" in _version(env)


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    return "HYDRA" in _version(env) or "MPICH" in _version(env)


def is_intel_mpi(env: Mapping[str, str] | None = None) -> bool:
    return "Intel(R) MPI" in _version(env)


def _version(env: Mapping[str, str] | None) -> str:
    try:
        asked = subprocess.run(
            ["mpirun", "--version"], env=_whole(env), capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout + asked.stderr


def _whole(env: Mapping[str, str] | None) -> dict[str, str]:
    return dict(os.environ if env is None else env)


def mpi_run(
    settings: Settings,
    nics: Iterable[str] | None,
    env: Mapping[str, str] | None,
    command: str | Sequence[str],
    stdout: Any = None,
    stderr: Any = None,
) -> None:
    """Runs the command under `mpirun` and waits for its end; `RuntimeError` if it fails or there is no `mpirun`."""
    words = shlex.split(command) if isinstance(command, str) else list(command)
    job = [*_mpirun(settings, env), *shlex.split(settings.extra_mpi_args or ""), *words]
    code = subprocess.run(job, env=_whole(env), stdout=stdout, stderr=stderr, check=False).returncode
    if code:
        raise RuntimeError(f"the job failed: mpirun exited with non-zero status {code}.")


def _mpirun(settings: Settings, env: Mapping[str, str] | None) -> list[str]:
    count = ["-np", str(settings.num_proc)]
    if is_open_mpi(env) or is_spectrum_mpi(env):
        hosts = ["-H", settings.hosts] if settings.hosts else []
        binding = shlex.split(settings.binding_args or "-bind-to none -map-by slot")
        return ["mpirun", "--allow-run-as-root", "--tag-output", *count, *hosts, *binding]
    if is_mpich(env) or is_intel_mpi(env):
        names = parse_hosts_and_slots(settings.hosts)[0] if settings.hosts else []
        hosts = ["-hosts", ",".join(names)] if names else []
        return ["mpirun", "-l", *count, *hosts, *shlex.split(settings.binding_args or "")]
    raise RuntimeError(
        "there is no mpirun of Open MPI, Spectrum MPI, MPICH or Intel MPI in PATH. Corro needs none of them: use "
        "`corro run`, or corro.runner.gloo_run."
    )
