"""How the processes of an estimator come by their rows: `ParquetDataModule`, or a class of your own made of `DataModule`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DataModule", "NVTabularDataModule", "ParquetDataModule", "PetastormDataModule"]


class DataModule:
    """What an estimator asks for. A class of your own gives `train_data` and `val_data`: batches, again and again.

    `train_dir` and `val_dir` hold Parquet files, `cur_shard` of `shard_count` is this rank, `schema_fields` are the columns
    that are needed. Used as a context manager: open what you need in `__enter__`.

    Example:
        >>> from corro.spark.common.datamodule import DataModule
        >>> class OneBatch(DataModule):
        ...     def train_data(self):
        ...         return [{"x": [1.0, 2.0]}]
        >>> with OneBatch("train", "val") as data:
        ...     list(data.train_data())
        [{'x': [1.0, 2.0]}]
    """

    short_name: str | None = None

    def __init__(
        self,
        train_dir: str,
        val_dir: str,
        num_train_epochs: int = 1,
        has_val: bool = True,
        train_batch_size: int = 32,
        val_batch_size: int = 32,
        shuffle: bool = True,
        transform_fn: Callable[[Any], Any] | None = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        steps_per_epoch_train: int | None = None,
        steps_per_epoch_val: int | None = None,
        verbose: bool | int = True,
        **kwargs: Any,
    ) -> None:
        self.train_dir = train_dir
        self.val_dir = val_dir
        self.num_train_epochs = num_train_epochs
        self.has_val = has_val
        self.train_batch_size = train_batch_size
        self.val_batch_size = val_batch_size
        self.shuffle = shuffle
        self.transform_fn = transform_fn
        self.inmemory_cache_all = inmemory_cache_all
        self.cur_shard = cur_shard
        self.shard_count = shard_count
        self.schema_fields = schema_fields
        self.storage_options = storage_options
        self.steps_per_epoch_train = steps_per_epoch_train
        self.steps_per_epoch_val = steps_per_epoch_val
        self.verbose = verbose
        self.options = kwargs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        return None

    def train_data(self) -> Iterable[Any]:
        """The batches of an epoch; the next time it is gone through, those of the next."""
        raise NotImplementedError

    def val_data(self) -> Iterable[Any]:
        """The batches to validate with."""
        raise NotImplementedError


class ParquetDataModule(DataModule):
    """Batches as dictionaries of numpy arrays, by column, from Parquet files of any store.

    Each row is read by one rank, once in an epoch. Options: `seed` (the order of rows), `pool_rows` (how many rows are
    mixed with each other, 65,536) and `store` (a `Store` for both folders, where a path and `storage_options` do not do).

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> from corro.spark.common.datamodule import ParquetDataModule
        >>> pyarrow.parquet.write_table(pyarrow.table({"x": range(5)}), "five.parquet")
        >>> with ParquetDataModule("five.parquet", "", has_val=False, train_batch_size=3, shuffle=False) as data:
        ...     [batch["x"].tolist() for batch in data.train_data()]
        [[0, 1, 2], [3, 4]]
    """

    short_name = "parquet"

    def train_data(self) -> Iterable[dict[str, Any]]:
        return self._reader(self.train_dir, self.train_batch_size, self.steps_per_epoch_train, self.shuffle)

    def val_data(self) -> Iterable[dict[str, Any]]:
        # The order of rows does not matter to what is measured.
        return self._reader(self.val_dir, self.val_batch_size, self.steps_per_epoch_val, False)

    def _reader(self, folder: str, batch_size: int, steps: int | None, shuffle: bool) -> Iterable[dict[str, Any]]:
        from corro.spark.common._reader import POOL_ROWS, BatchReader, find_pieces
        from corro.spark.common.store import FilesystemStore

        store = self.options.get("store") or FilesystemStore(folder, storage_options=self.storage_options)
        return BatchReader(
            store.fs,
            find_pieces(store, folder),
            self.schema_fields,
            rank=self.cur_shard,
            size=self.shard_count,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=self.options.get("seed"),
            steps=steps,
            transform=self.transform_fn,
            pool_rows=self.options.get("pool_rows") or POOL_ROWS,
            keep=self.inmemory_cache_all,
        )


# Horovod's default reads by Petastorm, which today's pyarrow has no place for. Same duty, same name.
PetastormDataModule = ParquetDataModule


class NVTabularDataModule(ParquetDataModule):
    """Replaces Horovod's module of this name, which reads by NVIDIA's NVTabular, straight into the memory of GPUs.

    NVTabular's last release is of 2023. This reads the same rows as `ParquetDataModule`, through the memory of
    the host, and warns of that.

    Example:
        >>> import warnings
        >>> from corro.spark.common.datamodule import NVTabularDataModule
        >>> with warnings.catch_warnings(record=True) as told:
        ...     warnings.simplefilter("always")
        ...     data = NVTabularDataModule("train", "val")
        >>> "not by NVTabular" in str(told[0].message)
        True
    """

    short_name = "nvtabular"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        warnings.warn(
            "NVTabularDataModule reads as ParquetDataModule does, not by NVTabular: rows go through the host's memory.",
            stacklevel=2,
        )
