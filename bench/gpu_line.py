"""How a rank of a contestant of `gpu.py` is told what to do, over a socket, and how it answers."""

from __future__ import annotations

import json
import socket
import traceback
from collections.abc import Callable


def serve(path: str, **commands: Callable[[dict], dict]) -> None:
    """Does what it is told until it is told to quit; an exception is an answer too."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    listen, speak = line.makefile("r"), line.makefile("w")

    def say(**answer) -> None:
        speak.write(json.dumps(answer) + "\n")
        speak.flush()

    say(ready=True)
    for command in iter(listen.readline, ""):
        asked = json.loads(command)
        if asked["do"] == "quit":
            break
        try:
            say(**commands[asked["do"]](asked))
        except Exception:
            say(error=traceback.format_exc(limit=-3))
