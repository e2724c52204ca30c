"""The launcher's end of an agent that runs in a Spark task: run as `_relay.py SOCKET HOST`, in place of ssh.

Standard input goes to the switchboard, what the agent writes comes from there. Imports little: one of these is started for
each task.
"""

import os
import socket
import sys
import threading

# Kinds of what comes: the agent's standard output, and its standard error or why it is gone.
OUTPUT, ERROR = b"o", b"e"


def main() -> int:
    path, host = sys.argv[1:3]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(host.encode() + b"\n")
    threading.Thread(target=_pass_input, args=(connection,), daemon=True).start()
    arriving = connection.makefile("rb")
    while True:
        kind = arriving.read(1)
        if not kind:
            return 0
        text = arriving.read(int.from_bytes(arriving.read(4), "big"))
        _write(2 if kind == ERROR else 1, text)


def _pass_input(connection: socket.socket) -> None:
    try:
        while text := os.read(0, 1 << 16):
            connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the switchboard is gone, which the reader sees too


def _write(where: int, text: bytes) -> None:
    while text:
        text = text[os.write(where, text) :]


if __name__ == "__main__":
    os._exit(main())
