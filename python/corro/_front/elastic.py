"""Elastic training: state that survives a change of the ranks, and the loop that starts over.

Every state carries its progress: a number that tells which of two states is newer, whatever has happened to the ranks that
hold them. It is made of the epoch in which the state was last the same on all ranks, and the commits since then. A rank
that is new has progress 0. The driver makes the rank with the highest progress rank 0 of the next epoch, and there all take
the state of rank 0. So a state that some ranks have committed is not lost as long as one of them lives, and a rank that was
interrupted while it took over a state counts as the older one that it was before.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import queue
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from corro import _native
from corro._errors import HorovodInternalError, HostsUpdatedInterrupt
from corro._front import basics
from corro._front import process_sets as sets
from corro._front.adapter import CPU, INT64
from corro._front.arguments import Max
from corro._front.objects import gather_numbers

P = ParamSpec("P")
R = TypeVar("R")

# What a host update was: bits of the number that the driver sends.
REMOVED = 1
ADDED = 2
ENDING = 4

# What a progress is made of: epochs (where no launcher counts them, they are seconds), commits, and in the lowest bit
# whether what the state holds now is newer than its last commit.
_LIVE = 1
_COMMIT = 2
_EPOCH = 1 << 29


class Notifications:
    """Where news of host changes arrive; every `State` that is running listens."""

    def __init__(self) -> None:
        self._listeners: list[State] = []

    def init(self) -> None:
        """Horovod starts a server here. The news of an elastic job come over the connection that it has anyway."""

    def register_listener(self, listener: State) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: State) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: int, update: int) -> None:
        """For programs that find hosts themselves; on any thread. `update` is `REMOVED`, `ADDED` or both."""
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update)


notifications = Notifications()


class State:
    """What must be equal on all ranks when training starts or goes on. Subclasses say how to save, restore and sync it.

    `sync` takes over the state of rank 0: it is the newest there is.
    """

    _progress = 0

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[int, int]] = queue.Queue()
        self._reset_callbacks: list[Callable[[], None]] = []
        self._end_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """These are called, in order, after the ranks changed and before the state is sent around."""
        self._reset_callbacks.extend(callbacks)

    def register_end_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """These are called, in order, on all ranks at the commit at which the job ends before its work is done: its time is
        up, or its scheduler wants the machines (`corro run` got SIGUSR1). Save a checkpoint there; then the process ends.
        """
        self._end_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the ranks have changed: adapts to them, and calls what is registered."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update: int) -> None:
        """Called when hosts have changed, on any thread; the next commit acts on it."""
        self._host_messages.put((timestamp, update))

    def commit(self) -> None:
        """Saves the state, and looks whether hosts came or went. What is not committed is lost when a rank is."""
        self.save()
        if self._progress:
            self._set_progress((self._progress & ~_LIVE) + _COMMIT)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises `HostsUpdatedInterrupt` on all ranks together if any of them has heard of a change. All must call it."""
        heard = _native.host_changes()
        while not self._host_messages.empty():
            heard |= self._host_messages.get()[1]
        removed, added, ending = _highest(heard & REMOVED, heard & ADDED, heard & ENDING)
        if ending:
            self._end()
        if removed or added:
            raise HostsUpdatedInterrupt(skip_sync=not added)

    def _end(self) -> None:
        """All ranks, at the same commit: what they have is saved by those who know how, and they end."""
        for callback in self._end_callbacks:
            callback()
        _native.end_early()
        raise SystemExit(0)

    def save(self) -> None:
        """Keeps a copy of the state as it is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Takes over what rank 0 has now, and saves it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts to the new ranks."""

    def _begin(self, skip_sync: bool) -> None:
        """All ranks, when an epoch begins: they go on from the same state, which is committed on all of them."""
        standings = gather_numbers([self._progress, not skip_sync], "elastic.begin") if _several() else []
        progress, wishes = standings[::2], standings[1::2]
        if progress and progress[0] == 0 and any(progress):
            raise RuntimeError(
                f"rank 0 is new in this job, but rank {progress.index(max(progress))} holds the state of the training; "
                f"it cannot be taken from rank 0. Start elastic jobs with `corro run --min-np N`."
            )
        # A rank that asks for nothing may still meet one that is new: what counts is whether all have the same.
        if not skip_sync or any(wishes) or len(set(progress)) > 1:
            self.sync()
        else:
            self.save()
        self._set_progress((_native.epoch() + 1) * _EPOCH)

    def _interrupted(self) -> None:
        """The hosts changed, and all ranks stopped at the same place: what they have now is not to be lost."""
        if self._progress:
            self._set_progress(self._progress | _LIVE)

    def _failed(self) -> None:
        """A rank was lost: what this one has done since its last commit may be half of a step."""
        self.restore()
        self._set_progress(self._progress & ~_LIVE)

    def _set_progress(self, progress: int) -> None:
        # An attribute of `object`: subclasses have rules for the attributes of users.
        object.__setattr__(self, "_progress", progress)
        _native.set_progress(progress)


class ObjectState(State):
    """Plain Python values as attributes of the state.

    `save` copies numbers, strings, arrays, and lists, tuples, sets and dicts of them. Other objects are kept as they are.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        self._saved_state = {name: _copied(value) for name, value in kwargs.items()}
        for name, value in kwargs.items():
            setattr(self, name, value)
        super().__init__(bcast_object, get_rank)

    if TYPE_CHECKING:
        # The attributes are what the program has given: `state.epoch` is there if it said `epoch=0`.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def save(self) -> None:
        self._saved_state = {name: _copied(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, _copied(value))

    def sync(self) -> None:
        """Takes over what rank 0 has now, and saves it."""
        if self._saved_state:
            # Horovod sends what rank 0 saved last, although it sends the models as they are now; then counters and
            # models are of different times if the interrupt did not come from a commit.
            for name, value in self._bcast_object({name: getattr(self, name) for name in self._saved_state}).items():
                setattr(self, name, value)
        # Not before everything has arrived: a rank that is interrupted in between must find what it had before.
        self.save()


def run_fn(func: Callable[P, R], reset: Callable[[], None]) -> Callable[P, R]:
    """`func(state, ...)`, started again whenever ranks are lost or hosts change."""

    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        state = _state_of(args, kwargs)
        notifications.init()
        notifications.register_listener(state)
        skip_sync = restarting = False
        try:
            while True:
                try:
                    if restarting:
                        reset()
                        state.on_reset()
                    state._begin(skip_sync)
                    return func(*args, **kwargs)
                except HorovodInternalError as error:
                    if not error.retryable:
                        raise
                    state._failed()
                    skip_sync = False
                except HostsUpdatedInterrupt as interrupt:
                    state._interrupted()
                    skip_sync = interrupt.skip_sync
                restarting = True
        finally:
            notifications.remove_listener(state)

    return wrapper


def _state_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> State:
    """The state that an elastic function was called with: its first argument."""
    if not args and "state" not in kwargs:
        raise TypeError("a function of hvd.elastic.run is called with its state first, as in train(state).")
    return args[0] if args else kwargs["state"]


def restart() -> None:
    """Leaves the ranks there were and meets those there are now. The process sets that `init` was given are made again."""
    basics.restart(process_sets=sets.given())


def _several() -> bool:
    return _native.is_initialized() and _native.size() > 1


def _highest(*numbers: int) -> list[int]:
    """The highest of each number over all ranks. Ranks that have joined (`hvd.join`) count as 0."""
    if not _several():
        return list(numbers)
    array = (ctypes.c_int64 * len(numbers))(*numbers)
    view = (ctypes.addressof(array), (len(numbers),), INT64, CPU)
    _native.run("allreduce", view, view, 0, "elastic.updates", op=Max)
    return list(array)


def _copied(value: Any) -> Any:
    """A copy of plain data. Arrays and tensors say themselves how they are copied; whatever else is there stays itself."""
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(value) if hasattr(value, "__deepcopy__") else value
