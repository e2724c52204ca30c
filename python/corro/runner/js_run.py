"""LSF's `jsrun`. Corro starts ranks itself, also inside an LSF job; ranks that you start by `jsrun` find each other."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from corro.runner.common.util.hosts import parse_hosts
from corro.runner.common.util.settings import Settings


def is_jsrun_installed() -> bool:
    return shutil.which("jsrun") is not None


def js_run(settings: Any, nics: Any, env: Any, command: Any, stdout: Any = None, stderr: Any = None) -> NoReturn:
    raise RuntimeError(
        "Corro does not call jsrun for you. Inside an LSF job either call it yourself, as in `jsrun -n 4 python "
        "train.py`, or let `corro run python train.py` start a rank in every slot of the job."
    )


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
