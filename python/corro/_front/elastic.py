"""Elastic training: state that survives a change of the ranks, and the loop that starts over."""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable, Iterable
from typing import Any

from corro._errors import HorovodInternalError, HostsUpdatedInterrupt

# What a host update was: bits of the number that the driver sends.
REMOVED = 1
ADDED = 2


class Notifications:
    """Where news of host changes arrive; every `State` that is running listens."""

    def __init__(self) -> None:
        self._listeners: list[State] = []

    def register_listener(self, listener: State) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: State) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: int, update: int) -> None:
        """Called from the driver's side, on any thread."""
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update)


notifications = Notifications()


class State:
    """What must be equal on all ranks when training starts or goes on. Subclasses say how to save, restore and sync it."""

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[int, int]] = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """These are called, in order, after the ranks changed and before the state is sent around."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update: int) -> None:
        self._host_messages.put((timestamp, update))

    def commit(self) -> None:
        """Saves the state, and looks whether hosts came or went. What is not committed is lost when a rank is."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises `HostsUpdatedInterrupt` on all ranks together if rank 0 has heard of a change since the last look."""
        previous = latest = self._last_updated_timestamp
        updates = 0
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > latest:
                latest = timestamp
                updates |= update
        previous, latest, updates = self._bcast_object((previous, latest, updates))
        self._last_updated_timestamp = latest
        if latest > previous:
            raise HostsUpdatedInterrupt(skip_sync=updates == REMOVED)

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts to the new ranks."""


class ObjectState(State):
    """Plain Python values as attributes of the state."""

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        self._saved_state = dict(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        super().__init__(bcast_object, get_rank)

    def save(self) -> None:
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)

    def sync(self) -> None:
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self.restore()


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """`func(state, ...)`, started again whenever ranks are lost or hosts change."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        notifications.register_listener(state)
        skip_sync = False
        try:
            while True:
                try:
                    if not skip_sync:
                        state.sync()
                    return func(state, *args, **kwargs)
                except HorovodInternalError:
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as interrupt:
                    skip_sync = interrupt.skip_sync
                reset()
                state.on_reset()
        finally:
            notifications.remove_listener(state)

    return wrapper
