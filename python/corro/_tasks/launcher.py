"""The launcher of a job in tasks, a process of its own beside the driver: `python -m corro._tasks.launcher FD`.

It is apart from the driver so that what ranks write can go to any file-like object there, so that Ctrl-C means one thing in
each of both, and so that a driver that is killed takes its job with it. The driver talks to it through `FD`: first a
`Request`, then what becomes of the tasks. It answers with tuples: `("ready",)`, `("told", letter)`, `("over", Ended)`.
"""

from __future__ import annotations

import _thread
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from corro import _native
from corro._command import program
from corro._tasks.messages import Ended, LetGo, Request
from corro._tasks.switchboard import Switchboard, Task

# How long the loss of a task is waited for when the launcher has already lost its host, or the other way round.
_TOGETHER_SECONDS = 1.0
# How long an elastic job with enough tasks waits for the others: those that come together begin together.
_GATHER_SECONDS = 2.0


class _Launcher:
    def __init__(self, request: Request, driver: Connection) -> None:
        self._request = request
        self._driver = driver
        self._woken = threading.Event()
        self._tasks_ended: str | None = None
        # From then on the driver may close its end.
        self._is_over = False
        # Letters of ranks come in threads of their own.
        self._answering = threading.Lock()
        listener = socket.socket(fileno=request.listener)
        self._board = Switchboard(listener, request.key, request.kind, self._on_change, self._on_letter)
        self._hosts_file = self._board.folder() / "hosts"
        self._ranks: dict[str, int] = {}
        self._board.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self) -> Ended:
        try:
            if not self._wait_for_tasks():
                told = f"{self._request.kind.system} has ended before all {self._request.kind.noun}s were there"
                return Ended(failure=(f"{told}: {self._tasks_ended}", None))
            self.answer("ready")
            results, failure = _native.start_job(
                {
                    "flags": [*self._request.flags, *self._placement()],
                    "command": list(self._request.command),
                    "agent": [program(), "agent"],
                    "payload": self._request.payload,
                    "variables": list(self._request.variables),
                }
            )
            self._is_over = True
            return Ended(results, failure, self._lost() if failure is not None else ())
        finally:
            self._board.close()

    def _placement(self) -> list[str]:
        shell = [f"--remote-shell={self._board.remote_shell()}", "--remote-corro=corro"]
        if self._request.is_elastic:
            return [f"--host-discovery-script=cat {self._hosts_file}", *shell]
        ordered = by_machine(self._board.tasks())
        self._ranks = {task.name: rank for rank, task in enumerate(ordered)}
        return [f"--hosts={','.join(f'{task.address}:1' for task in ordered)}", *shell]

    def _wait_for_tasks(self) -> bool:
        """False if there will never be enough: no more will come."""
        while len(self._board.tasks()) < self._request.fewest:
            if self._tasks_ended is not None:
                return False
            self._woken.wait(1.0)
            self._woken.clear()
        until = time.monotonic() + _GATHER_SECONDS
        while len(self._board.tasks()) < self._request.most and time.monotonic() < until:
            self._woken.wait(0.1)
            self._woken.clear()
        return True

    def _lost(self) -> list[tuple[int, int | None, str]]:
        until = time.monotonic() + _TOGETHER_SECONDS
        while not self._board.lost() and self._tasks_ended is None and time.monotonic() < until:
            self._woken.wait(0.05)
            self._woken.clear()
        return [(task.index, self._ranks.get(task.name), task.host) for task in self._board.lost()]

    def _on_change(self) -> None:
        if self._request.is_elastic:
            hosts = "".join(f"{task.address}:1\n" for task in self._board.tasks())
            new = self._hosts_file.with_suffix(".new")
            new.write_text(hosts, encoding="utf-8")
            new.replace(self._hosts_file)  # at once: nobody reads half of it
        self._woken.set()

    def _on_letter(self, letter: bytes) -> None:
        self.answer("told", letter)

    def answer(self, *what: Any) -> None:
        with self._answering:
            self._driver.send(what)

    def _listen(self) -> None:
        """To the driver: what became of the tasks. If the driver is gone, so is the job."""
        try:
            while True:
                word: Any = self._driver.recv()
                if isinstance(word, LetGo):
                    self._board.let_go(word.index)
                else:
                    self._tasks_ended = str(word)
                self._woken.set()
        except (EOFError, OSError):
            if not self._is_over:
                _thread.interrupt_main()


def by_machine(tasks: Sequence[Task]) -> list[Task]:
    """The order of ranks: machine by machine, the one of task 0 first, and by their numbers on each."""
    first: dict[str, int] = {}
    for task in sorted(tasks, key=lambda task: task.index):
        first.setdefault(task.host, task.index)
    return sorted(tasks, key=lambda task: (first[task.host], task.index))


def main() -> None:
    driver = Connection(int(sys.argv[1]))
    request: Any = driver.recv()
    try:
        ended = _Launcher(request, driver).run()
    except KeyboardInterrupt:
        ended = Ended(failure=("the job was ended by the driver", None))
    except Exception as error:
        ended = Ended(failure=(str(error), None))
    with suppress(OSError):  # nobody wants to know
        driver.send(("over", ended))
    # Threads that serve connections are left as they are.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
