"""Batches of a reader as PyTorch tensors: `reader` gives dictionaries of numpy arrays, as `ParquetDataModule` does.

The `Async` kinds load in a thread. The `Infinite` kinds go on with the next epoch of the reader when one ends, and need
`limit_step_per_epoch`. The `Inmem` kinds read once and keep what they have read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from corro.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = [
    "PytorchAsyncDataLoader",
    "PytorchDataLoader",
    "PytorchInfiniteAsyncDataLoader",
    "PytorchInfiniteDataLoader",
    "PytorchInmemAsyncDataLoader",
    "PytorchInmemDataLoader",
]


class PytorchDataLoader(BaseDataLoader):
    """Rows of a reader in batches of `batch_size`, mixed within `shuffling_queue_capacity` rows if that is above 0.

    With `limit_step_per_epoch` an epoch ends after so many batches.

    Example:
        >>> import numpy
        >>> from corro.spark.data_loaders.pytorch_data_loaders import PytorchDataLoader
        >>> loader = PytorchDataLoader([{"x": numpy.arange(5)}], batch_size=2, shuffling_queue_capacity=0)
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        reader: Iterable[Mapping[str, np.ndarray]],
        batch_size: int,
        shuffling_queue_capacity: int = 0,
        name: str = "",
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reader = reader
        self.batch_size = batch_size
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self.name = name
        self.limit_step_per_epoch = limit_step_per_epoch
        self.verbose = verbose
        self._chance = np.random.default_rng(0)

    def __len__(self) -> int:
        if self.limit_step_per_epoch < 0:
            raise TypeError(
                f"the number of steps of {self.name or 'this loader'} is not known: give limit_step_per_epoch."
            )
        return self.limit_step_per_epoch

    def _iterate(self) -> Iterator[Any]:
        for number, batch in enumerate(self._batches(self.reader)):
            if number == self.limit_step_per_epoch:
                return
            yield _as_tensors(batch)
        if self.verbose:
            print(f"{self.name}: an epoch is over", flush=True)

    def _batches(self, reader: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
        """Rows in batches of the wanted size; what is left at the end is a smaller one."""
        enough = max(self.batch_size, self.shuffling_queue_capacity)
        held: list[Mapping[str, np.ndarray]] = []
        for given in reader:
            held.append(given)
            if sum(map(_length, held)) >= enough:
                pool = self._mixed(held)
                whole = _length(pool) - _length(pool) % self.batch_size
                for at in range(0, whole, self.batch_size):
                    yield _part(pool, at, at + self.batch_size)
                held = [_part(pool, whole, _length(pool))] if whole < _length(pool) else []
        if held:
            pool = self._mixed(held)
            for at in range(0, _length(pool), self.batch_size):
                yield _part(pool, at, at + self.batch_size)

    def _mixed(self, held: list[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        pool = {name: np.concatenate([one[name] for one in held]) for name in held[0]}
        if self.shuffling_queue_capacity <= 0:
            return pool
        order = self._chance.permutation(_length(pool))
        return {name: column[order] for name, column in pool.items()}


class PytorchInfiniteDataLoader(PytorchDataLoader):
    """As `PytorchDataLoader`, for a reader of any length: an epoch goes on where the one before has ended.

    Example:
        >>> import numpy
        >>> from corro.spark.data_loaders.pytorch_data_loaders import PytorchInfiniteDataLoader
        >>> loader = PytorchInfiniteDataLoader(reader=[{"x": numpy.arange(3)}], batch_size=2, limit_step_per_epoch=3)
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1], [2], [0, 1]]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.limit_step_per_epoch <= 0:
            raise ValueError("an epoch of an infinite reader needs an end: give limit_step_per_epoch above 0.")
        self._going = self._forever()

    def _forever(self) -> Iterator[dict[str, np.ndarray]]:
        while True:
            yield from self._batches(self.reader)

    def _iterate(self) -> Iterator[Any]:
        for _ in range(self.limit_step_per_epoch):
            yield _as_tensors(next(self._going))


class PytorchInmemDataLoader(PytorchDataLoader):
    """As `PytorchDataLoader`, but it reads its reader only once and keeps the rows. If rows are mixed, all of them are.

    Example:
        >>> import numpy
        >>> from corro.spark.data_loaders.pytorch_data_loaders import PytorchInmemDataLoader
        >>> loader = PytorchInmemDataLoader(reader=[{"x": numpy.arange(3)}], batch_size=2)
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1], [2]]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: list[Mapping[str, np.ndarray]] | None = None

    def _iterate(self) -> Iterator[Any]:
        if self._kept is None:
            held = list(self.reader)
            self._kept = [{name: np.concatenate([one[name] for one in held]) for name in held[0]}] if held else []
        for number, batch in enumerate(self._batches(self._kept)):
            if number == self.limit_step_per_epoch:
                return
            yield _as_tensors(batch)


class PytorchAsyncDataLoader(AsyncDataLoaderMixin, PytorchDataLoader):
    """`PytorchDataLoader` in a thread of its own; `async_loader_queue_size` batches are kept ready.

    Example:
        >>> import numpy
        >>> from corro.spark.data_loaders.pytorch_data_loaders import PytorchAsyncDataLoader
        >>> loader = PytorchAsyncDataLoader(reader=[{"x": numpy.arange(3)}], batch_size=2, async_loader_queue_size=1)
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1], [2]]
        >>> loader.close_async_loader()
    """


class PytorchInfiniteAsyncDataLoader(AsyncDataLoaderMixin, PytorchInfiniteDataLoader):
    """`PytorchInfiniteDataLoader` in a thread of its own.

    Example:
        >>> import numpy
        >>> from corro.spark.data_loaders.pytorch_data_loaders import PytorchInfiniteAsyncDataLoader
        >>> reader = [{"x": numpy.arange(3)}]
        >>> loader = PytorchInfiniteAsyncDataLoader(reader=reader, batch_size=2, limit_step_per_epoch=1)
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1]]
        >>> loader.close_async_loader()
    """


class PytorchInmemAsyncDataLoader(AsyncDataLoaderMixin, PytorchInmemDataLoader):
    """`PytorchInmemDataLoader` in a thread of its own.

    Example:
        >>> import numpy
        >>> from corro.spark.data_loaders.pytorch_data_loaders import PytorchInmemAsyncDataLoader
        >>> loader = PytorchInmemAsyncDataLoader(reader=[{"x": numpy.arange(3)}], batch_size=2, async_loader_queue_size=1)
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1], [2]]
        >>> loader.close_async_loader()
    """


def _length(batch: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(batch.values()))) if batch else 0


def _part(batch: Mapping[str, np.ndarray], begin: int, end: int) -> dict[str, np.ndarray]:
    return {name: column[begin:end] for name, column in batch.items()}


def _as_tensors(batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in batch.items()}
