"""Starting a command by MPI's own launcher. Corro does not need it; ranks find each other under it all the same."""

from __future__ import annotations

import os
import re
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
    whole = _whole(env)
    interfaces = [] if nics is None and settings.nics is None else list(settings.nics if nics is None else nics)
    if interfaces:
        for name in ("CORRO_INTERFACE", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"):
            whole[name] = ",".join(interfaces)
    ssh = _ssh(settings)
    if ssh:
        # Those of MPICH and Intel MPI; Open MPI has an option.
        whole["HYDRA_LAUNCHER_EXTRA_ARGS"] = whole["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] = ssh
    job = [*_mpirun(settings, env, interfaces, whole), *shlex.split(settings.extra_mpi_args or ""), *words]
    code = subprocess.run(job, env=whole, stdout=stdout, stderr=stderr, check=False).returncode
    if code:
        raise RuntimeError(f"the job failed: mpirun exited with non-zero status {code}.")


def _ssh(settings: Settings) -> str:
    port = ["-p", str(settings.ssh_port)] if settings.ssh_port else []
    key = ["-i", settings.ssh_identity_file] if settings.ssh_identity_file else []
    return " ".join([*port, *key])


def _for_open_mpi(settings: Settings, interfaces: list[str], version: str, whole: Mapping[str, str]) -> list[str]:
    words = ["--mca", "btl_tcp_if_include", ",".join(interfaces)] if interfaces else []
    if ssh := _ssh(settings):
        words += ["--mca", "plm_rsh_args", ssh]
    if settings.output_filename:
        # Since 5 the other one names files, not a folder.
        old = re.search(r"\(Open MPI\) [1-4]\.", version) or "Spectrum" in version
        words += ["--output-filename" if old else "--output-directory", settings.output_filename]
    if settings.prefix_output_with_timestamp:
        words.append("--timestamp-output")
    # It passes no variable to other hosts by itself.
    for name in sorted(whole):
        if name.startswith(("CORRO_", "HOROVOD_", "NCCL_", "OMP_")) and name != "CORRO_SECRET":
            words += ["-x", name]
    return words


def _mpirun(
    settings: Settings, env: Mapping[str, str] | None, interfaces: list[str], whole: Mapping[str, str]
) -> list[str]:
    count = ["-np", str(settings.num_proc)]
    if is_open_mpi(env) or is_spectrum_mpi(env):
        hosts = ["-H", settings.hosts] if settings.hosts else []
        binding = shlex.split(settings.binding_args or "-bind-to none -map-by slot")
        more = _for_open_mpi(settings, interfaces, _version(env), whole)
        return ["mpirun", "--allow-run-as-root", "--tag-output", *count, *hosts, *binding, *more]
    if is_mpich(env) or is_intel_mpi(env):
        names = parse_hosts_and_slots(settings.hosts)[0] if settings.hosts else []
        hosts = ["-hosts", ",".join(names)] if names else []
        if settings.output_filename:
            raise ValueError("output_filename: this mpirun writes no files for its processes; leave it out.")
        if len(interfaces) > 1:
            raise ValueError(f"this mpirun takes one network interface, not {', '.join(interfaces)}.")
        if interfaces:
            hosts += ["-iface", interfaces[0]]
        return ["mpirun", "-l", *count, *hosts, *shlex.split(settings.binding_args or "")]
    raise RuntimeError(
        "there is no mpirun of Open MPI, Spectrum MPI, MPICH or Intel MPI in PATH. Corro needs none of them: use "
        "`corro run`, or corro.runner.gloo_run."
    )
