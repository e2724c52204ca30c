"""Horovod's place for the command line."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from corro._command import horovodrun, program
from corro._native import foreign
from corro.runner.mpi_run import mpi_available

# Flags of `horovodrun` with a value, by their names in the namespace that `parse_args` gives. What they mean is decided
# in crates/corro-launch; this is for programs that only want to look at them.
_NUMBERS = {
    "num_proc": ("-np", "--num-proc"),
    "min_num_proc": ("--min-np", "--min-num-proc"),
    "max_num_proc": ("--max-np", "--max-num-proc"),
    "slots": ("--slots-per-host",),
    "ssh_port": ("-p", "--ssh-port"),
    "start_timeout": ("--start-timeout",),
    "elastic_timeout": ("--elastic-timeout",),
    "reset_limit": ("--reset-limit",),
    "fusion_threshold_mb": ("--fusion-threshold-mb",),
    "cache_capacity": ("--cache-capacity",),
    "num_nccl_streams": ("--num-nccl-streams",),
}
_TEXTS = {
    "hosts": ("-H", "--hosts"),
    "hostfile": ("-hostfile", "--hostfile"),
    "host_discovery_script": ("--host-discovery-script",),
    "ssh_identity_file": ("-i", "--ssh-identity-file"),
    "output_filename": ("--output-filename",),
    "config_file": ("--config-file",),
    "nics": ("--network-interfaces", "--network-interface"),
    "mpi_args": ("--mpi-args",),
    "binding_args": ("--binding-args",),
    "cycle_time_ms": ("--cycle-time-ms",),
    "timeline_filename": ("--timeline-filename",),
    "log_level": ("--log-level",),
}
_SWITCHES = {
    "version": ("-v", "--version"),
    "check_build": ("-cb", "--check-build"),
    "disable_cache": ("--disable-cache",),
    "verbose": ("--verbose",),
    "tcp_flag": ("--tcp",),
    "autotune": ("--autotune",),
    "prefix_output_with_timestamp": ("-prefix-timestamp", "--prefix-output-with-timestamp"),
    "use_gloo": ("--gloo",),
    "use_mpi": ("--mpi",),
    "use_jsrun": ("--jsrun",),
}


def run_commandline() -> None:
    """`horovodrun`, with the arguments of this process."""
    horovodrun()


def parse_args() -> argparse.Namespace:
    """The arguments of this process as those of `horovodrun`: what is the command, and the flags people look at."""
    parser = argparse.ArgumentParser("horovodrun", add_help=False)
    for name, flags in _NUMBERS.items():
        parser.add_argument(*flags, dest=name, type=int)
    for name, flags in _TEXTS.items():
        parser.add_argument(*flags, dest=name)
    for name, flags in _SWITCHES.items():
        parser.add_argument(*flags, dest=name, action="store_true")
    parser.add_argument("--blacklist-cooldown-range", dest="cooldown_range", type=int, nargs=2)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.command[:1] == ["--"]:
        del given.command[0]
    return given


def check_build(verbose: bool = False) -> None:
    """Prints what is available, and ends the program."""
    sys.exit(subprocess.run([program(), "run", "--check-build"], check=False).returncode)


def is_gloo_used(use_gloo: bool | None = None, use_mpi: bool | None = None, use_jsrun: bool | None = None) -> bool:
    """Whether the job would run without MPI; it always can."""
    return bool(use_gloo) or not (use_mpi or use_jsrun)


def run_controller(
    use_gloo: bool | None,
    gloo_run: Callable[[], Any],
    use_mpi: bool | None,
    mpi_run: Callable[[], Any],
    use_jsrun: bool | None,
    js_run: Callable[[], Any],
    verbosity: int | None = None,
) -> None:
    """Calls the launcher that is asked for, or `gloo_run`, which stands for Corro's own."""
    if use_mpi:
        if not mpi_available():
            raise ValueError(
                "MPI support has not been built into Corro, which does not need it, and there is no mpirun of Open MPI, "
                "Spectrum MPI, MPICH or Intel MPI in PATH: leave use_mpi out."
            )
        mpi_run()
    elif use_jsrun:
        if foreign("LSB_JOBID") is None:
            raise ValueError("jsrun is for jobs of LSF, and this is none: LSB_JOBID is not set.")
        js_run()
    else:
        gloo_run()


if __name__ == "__main__":
    run_commandline()
