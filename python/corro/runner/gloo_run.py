"""Starting a command as Horovod's own launcher does: here that is `corro run`."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corro._command import program
from corro.runner.common.util.hosts import SlotInfo
from corro.runner.common.util.settings import Settings


def gloo_run(
    settings: Settings,
    nics: Iterable[str] | None,
    env: Mapping[str, str] | None,
    server_ip: str | None,
    command: str | Sequence[str],
) -> None:
    """Runs the command on `settings.num_proc` ranks and waits for its end; `RuntimeError` if it fails.

    `server_ip` is not needed: ranks try all addresses of the launcher.
    """
    words = shlex.split(command) if isinstance(command, str) else list(command)
    job = [program(), "run", *flags(settings, nics), "--", *words]
    code = subprocess.run(job, env=dict(os.environ if env is None else env), check=False).returncode
    if code:
        raise RuntimeError(f"the job failed: `corro run` exited with non-zero status {code}; what it wrote says why.")


launch_gloo = gloo_run


def flags(settings: Settings, nics: Iterable[str] | None = None) -> list[str]:
    """The settings as flags of `corro run`."""
    # Horovod's timeouts are objects that hold their seconds.
    timeout = getattr(settings.start_timeout, "_timeout", settings.start_timeout)
    values: dict[str, Any] = {
        "--num-proc": settings.num_proc,
        "--hosts": settings.hosts,
        "--ssh-port": settings.ssh_port,
        "--ssh-identity-file": settings.ssh_identity_file,
        "--start-timeout": timeout,
        "--output-filename": settings.output_filename,
        "--network-interfaces": ",".join(nics or settings.nics or ()) or None,
    }
    switches = {
        "--tcp": settings.tcp_flag,
        "--prefix-output-with-timestamp": settings.prefix_output_with_timestamp,
        "--verbose": (settings.verbose or 0) >= 2,
    }
    given = [f"{flag}={value}" for flag, value in values.items() if value is not None]
    return given + [flag for flag, wanted in switches.items() if wanted]


def create_slot_env_vars(slot_info: SlotInfo) -> dict[str, str]:
    """What a rank is told about its place."""
    places = ("hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    return {f"HOROVOD_{name.upper()}": str(getattr(slot_info, name)) for name in places}
