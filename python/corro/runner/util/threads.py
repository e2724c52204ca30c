"""Functions in threads: started at once, when an event happens, or many side by side."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls `target(*args)` in a thread, and gives the thread. With `silent`, what it raises is not printed."""
    _check_arguments(args)
    thread = threading.Thread(target=_quietly(target) if silent else target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls `func(*args)` in a thread once `event` is set, unless `stop` is set before; gives the thread.

    `stop` is looked at every `check_stop_interval_s` seconds. An event that is set wins over a stop that is set too.
    """
    if event is None:
        raise ValueError("on_event needs an event.")
    _check_arguments(args)
    if stop is not None and check_stop_interval_s <= 0:
        raise ValueError(f"check_stop_interval_s must be more than 0, not {check_stop_interval_s}.")

    def wait_and_call() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                break
        if event.is_set():
            try:
                func(*args)
            except Exception:
                if not silent:
                    traceback.print_exc()

    return in_thread(wait_and_call, daemon=daemon)


def execute_function_multithreaded(
    fn: Callable[..., T],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> Mapping[int, T] | None:
    """Calls `fn(*args)` for each of `args_list`, at most `max_concurrent_executions` at a time.

    Gives the results by their places in the list once all are there; what a call has raised is raised here. Without
    `block_until_all_done` gives None at once, and the calls go on.
    """
    if not args_list:
        return {} if block_until_all_done else None
    pool = ThreadPoolExecutor(min(max_concurrent_executions, len(args_list)), thread_name_prefix="corro")
    calls = {i: pool.submit(fn, *args) for i, args in enumerate(args_list)}
    pool.shutdown(wait=block_until_all_done)
    return {i: call.result() for i, call in calls.items()} if block_until_all_done else None


def _check_arguments(args: Any) -> None:
    # A single string would otherwise become as many arguments as it has letters.
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args).__name__}: for a single argument write (arg,).")


def _quietly(target: Callable[..., Any]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        try:
            target(*args)
        except Exception:
            return

    return call
