"""LSF's `jsrun`. Corro needs it as little as `mpirun`: `corro run` starts ranks itself, also inside an LSF job."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from corro.runner.common.util.hosts import parse_hosts
from corro.runner.common.util.settings import Settings


def is_jsrun_installed() -> bool:
    return shutil.which("jsrun") is not None


def js_run(settings: Settings, nics: Any, env: Any, command: Any, stdout: Any = None, stderr: Any = None) -> None:
    """Runs the command under `jsrun` and waits for its end; `RuntimeError` if it fails or there is no `jsrun`."""
    if not is_jsrun_installed():
        raise RuntimeError(
            "there is no jsrun in PATH. Corro does not need it: inside an LSF job `corro run python train.py` starts a rank "
            "in every slot of the job."
        )
    for name in ("output_filename", "ssh_port", "ssh_identity_file"):
        if getattr(settings, name):
            raise ValueError(f"{name} means nothing to jsrun; leave it out, or use corro.runner.gloo_run.")
    whole = dict(os.environ if env is None else env)
    interfaces = settings.nics if nics is None else nics
    if interfaces:
        for name in ("CORRO_INTERFACE", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"):
            whole[name] = ",".join(interfaces)
    words = shlex.split(command) if isinstance(command, str) else list(command)
    # As `corro run --jsrun` does.
    binding = shlex.split(settings.binding_args or "--cpu_per_rs=1 --gpu_per_rs=1 --bind=none")
    job = ["jsrun", "--nrs", str(settings.num_proc), "--tasks_per_rs=1", *binding]
    job += [*shlex.split(settings.extra_mpi_args or ""), *words]
    code = subprocess.run(job, env=whole, stdout=stdout, stderr=stderr, check=False).returncode
    if code:
        raise RuntimeError(f"the job failed: jsrun exited with non-zero status {code}.")


def generate_jsrun_rankfile(settings: Settings, path: str | None = None) -> str:
    """Writes a file for `jsrun --erf_input`: `settings.num_proc` ranks, host after host, with an equal share of cores each.

    The number of cores is this machine's; jobs of LSF run on machines of one kind.
    """
    hosts = parse_hosts(settings.hosts or "")
    wanted = settings.num_proc or sum(host.slots for host in hosts)
    if sum(host.slots for host in hosts) < wanted:
        raise ValueError(f"{wanted} processes are more than the slots of {settings.hosts}.")
    cores = os.cpu_count() or 1
    lines = ["overlapping_rs: allow", "cpu_index_using: logical"]
    rank = 0
    for host in hosts:
        share = max(cores // max(host.slots, 1), 1)
        for slot in range(min(host.slots, wanted - rank)):
            first = min(slot * share, cores - share)
            lines.append(
                f"rank: {rank}: {{ hostname: {host.hostname}; cpu: {{{first}-{first + share - 1}}} ; gpu: * ; mem: * }}"
            )
            rank += 1
    if path is None:
        descriptor, path = tempfile.mkstemp(suffix=".erf")
        os.close(descriptor)
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
