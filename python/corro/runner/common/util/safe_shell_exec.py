"""A shell command that never outlives its caller.

Between this process and the command stands a small one of ours (`_supervisor`), which starts the command in a session of
its own. It holds one end of a pipe whose other end is here. When that is closed, because the caller wants the command to
end or because the caller itself is gone, the command and everything it started are told to end, and are killed after
`GRACEFUL_TERMINATION_TIME_S`.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Protocol

from corro.runner.common.util import _supervisor
from corro.runner.util.threads import in_thread, on_event

__all__ = ["GRACEFUL_TERMINATION_TIME_S", "execute", "forward_stream", "prefix_stream"]

GRACEFUL_TERMINATION_TIME_S = _supervisor.GRACE_SECONDS

_AT_ONCE = 1 << 16


class Stream(Protocol):
    """What output is written to."""

    def write(self, text: Any, /) -> Any: ...


def execute(
    command: str,
    env: Mapping[str, str] | None = None,
    stdout: Stream | None = None,
    stderr: Stream | None = None,
    index: int | None = None,
    events: Iterable[threading.Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """Runs a shell command to its end, and gives its exit code, or 128 + the number of the signal that killed it.

    Its output is written to `stdout` and `stderr`, this process's own unless given: as it comes or, with an `index`, line by
    line behind `[index]<stdout>:`. Any of the `events` ends it.
    """
    order = {"command": command, "env": dict(os.environ if env is None else env)}
    theirs, ours = os.pipe()
    try:
        supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", _supervisor.__file__, str(theirs)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(theirs,),
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    line = _Line(ours)
    finished = threading.Event()
    with supervisor:
        try:
            line.send(json.dumps(order).encode() + b"\n")
            forwarders = [
                in_thread(forward_stream, (source, to, name, index, prefix_output_with_timestamp))
                for source, to, name in (
                    (supervisor.stdout, stdout or sys.stdout, "stdout"),
                    (supervisor.stderr, stderr or sys.stderr, "stderr"),
                )
            ]
            for event in events or ():
                on_event(event, line.close, stop=finished, check_stop_interval_s=0.5)
            code = supervisor.wait()
        finally:
            finished.set()
            line.close()
        # Something that the command has left running may hold its output open; it is not waited for.
        for forwarder in forwarders:
            forwarder.join(GRACEFUL_TERMINATION_TIME_S)
    return code if code >= 0 else 128 - code


def forward_stream(
    src_stream: IO[bytes],
    dst_stream: Stream,
    prefix: str | None = None,
    index: int | None = None,
    prefix_output_with_timestamp: bool = False,
) -> None:
    """Writes what `src_stream` has to `dst_stream` until it ends. With an `index`, every line gets a prefix."""
    write = _writer_to(dst_stream)
    if index is not None:
        prefix_stream(src_stream, write, f"[{index}]<{prefix}>:", prefix_output_with_timestamp)
        return
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while piece := _piece(src_stream):
        write(decoder.decode(piece))
    write(decoder.decode(b"", final=True))


def prefix_stream(
    src_stream: IO[bytes], write: Callable[[str], Any], prefix: str, prefix_output_with_timestamp: bool = False
) -> None:
    """Writes the lines of `src_stream`, which end with a newline or a carriage return, behind the prefix.

    The last line is written too if it has no end.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    unfinished = ""
    while True:
        piece = _piece(src_stream)
        lines = (unfinished + decoder.decode(piece, final=not piece)).replace("\r", "\n").split("\n")
        unfinished = lines.pop()
        if not piece and unfinished:
            lines.append(unfinished)
        when = time.strftime("%a %b %e %H:%M:%S %Y") if prefix_output_with_timestamp else ""
        if lines:
            write("".join(f"{when}{prefix}{line}\n" for line in lines))
        if not piece:
            return


def _piece(stream: IO[bytes]) -> bytes:
    """What is there, as soon as there is something; nothing at the end."""
    read = getattr(stream, "read1", stream.read)
    try:
        return read(_AT_ONCE)
    except ValueError:
        return b""  # closed by who waited for us


def _writer_to(stream: Stream) -> Callable[[str], None]:
    takes_bytes = isinstance(stream, (io.RawIOBase, io.BufferedIOBase)) or "b" in str(getattr(stream, "mode", ""))
    flush = getattr(stream, "flush", None)

    def write(text: str) -> None:
        if text:
            stream.write(text.encode() if takes_bytes else text)
            if flush is not None:
                flush()

    return write


class _Line:
    """The end of the pipe that keeps the command alive. Closed once, by whoever comes first."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._lock = threading.Lock()

    def send(self, message: bytes) -> None:
        with self._lock:
            while message and self._descriptor is not None:
                message = message[os.write(self._descriptor, message) :]

    def close(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
