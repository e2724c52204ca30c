"""The process that stands between `safe_shell_exec.execute` and its command; also a module, for what both must know.

It is started with the number of a pipe's end. The pipe's first line says what to run; the end of the pipe says that the
command has to end. It imports nothing of Corro's: it must start quickly.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import BinaryIO

GRACE_SECONDS = 5


def main() -> None:
    # Ctrl-C is for the caller, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = os.fdopen(int(sys.argv[1]), "rb")
    line = control.readline()
    if not line.endswith(b"\n"):
        sys.exit(1)  # the caller is gone
    order = json.loads(line)
    shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
    child = subprocess.Popen([shell, "-c", order["command"]], env=order["env"], start_new_session=True)
    ending = Ending(child.pid)
    # Who ends this process means the command.
    signal.signal(signal.SIGTERM, lambda *_: ending.begin())
    threading.Thread(target=_end_with, args=(control, ending), daemon=True).start()
    code = child.wait()
    ending.finish()
    # Not `sys.exit`, which would wait for the timer.
    os._exit(code if code >= 0 else 128 - code)


def _end_with(control: BinaryIO, ending: Ending) -> None:
    control.read()
    ending.begin()


class Ending:
    """Asks the processes of a group to end, and kills them when they have had their time."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._until: float | None = None

    def begin(self) -> None:
        if self._until is None:
            self._until = time.monotonic() + GRACE_SECONDS
            self._signal(signal.SIGTERM)
            threading.Timer(GRACE_SECONDS, self._signal, (signal.SIGKILL,)).start()

    def finish(self) -> None:
        """The shell has ended; what it started may still be about to."""
        while self._until is not None and time.monotonic() < self._until and self._signal(0):
            time.sleep(0.02)
        if self._until is not None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> bool:
        """Whether there was anybody to send it to."""
        try:
            os.killpg(self._group, number)
        except ProcessLookupError:
            return False
        return True


if __name__ == "__main__":
    main()
