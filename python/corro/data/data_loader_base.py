"""A loader to subclass, and a mixin that runs it in a thread of its own."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any


class BaseDataLoader:
    """A loader to subclass: `_iterate` gives the batches of one epoch, `__len__` their number.

    `_process_batch` may change each batch, in the thread that uses it.

    Example:
        >>> from corro.data import BaseDataLoader
        >>> class Numbers(BaseDataLoader):
        ...     def __len__(self):
        ...         return 3
        ...     def _iterate(self):
        ...         return iter(range(3))
        >>> list(Numbers())
        [0, 1, 2]
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """The batches of one epoch."""
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """A last change to a batch, made in the thread that consumes it."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class _Failed:
    """Carries an error from the loading thread to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class AsyncDataLoaderMixin:
    """Loads epoch after epoch into a queue, in a thread, ahead of the program. Put it first among the base classes.

    `async_loader_queue_size` batches are kept ready; 0 loads without a thread. An error in the thread is raised where the
    batch is asked for. Call `close_async_loader()` at the end.

    Example:
        >>> from corro.data import AsyncDataLoaderMixin, BaseDataLoader
        >>> class Numbers(AsyncDataLoaderMixin, BaseDataLoader):
        ...     def __len__(self):
        ...         return 3
        ...     def _iterate(self):
        ...         return iter(range(3))
        >>> loader = Numbers(async_loader_queue_size=2)
        >>> list(loader)
        [0, 1, 2]
        >>> loader.close_async_loader()
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        super().__init__(*args, **kwargs)
        self.started = False
        self.finished_event = threading.Event()
        if async_loader_queue_size > 0:
            self.queue: queue.Queue[Any] = queue.Queue(async_loader_queue_size)
            self.thread = threading.Thread(target=self._async_worker, daemon=True)

    def close_async_loader(self) -> None:
        """Ends the thread; what it has loaded is dropped."""
        self._say("closing")
        self.finished_event.set()
        if not self.started:
            return
        while self.thread.is_alive():
            # The thread may be waiting for room.
            with contextlib.suppress(queue.Empty):
                self.queue.get(timeout=0.05)
        self.thread.join()
        self.started = False

    def _async_worker(self) -> None:
        try:
            while not self.finished_event.is_set():
                for batch in self._iterate():  # type: ignore[attr-defined]
                    if self.finished_event.is_set():
                        return
                    self.queue.put(batch)
                self.queue.put(None)
        except BaseException as error:
            self.queue.put(_Failed(error))
            self.queue.put(None)

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        if not self.started:
            self._say("starting")
            self.started = True
            self.thread.start()
        while (batch := self.queue.get()) is not None:
            if isinstance(batch, _Failed):
                raise batch.error
            yield self._process_batch(batch)  # type: ignore[attr-defined]

    def _say(self, what: str) -> None:
        if self.debug_data_loader:
            print(f"{type(self).__name__}: {what} the asynchronous loader", flush=True)
