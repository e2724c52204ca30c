"""Horovod's place for the command line."""

from __future__ import annotations

import subprocess
import sys

from corro._command import horovodrun, program


def run_commandline() -> None:
    """`horovodrun`, with the arguments of this process."""
    horovodrun()


def check_build(verbose: bool = False) -> None:
    """Prints what is available, and ends the program."""
    sys.exit(subprocess.run([program(), "run", "--check-build"], check=False).returncode)


def is_gloo_used(use_gloo: bool | None = None, use_mpi: bool | None = None, use_jsrun: bool | None = None) -> bool:
    """Whether the job would run without MPI; it always can."""
    return bool(use_gloo) or not (use_mpi or use_jsrun)
