"""Reads a rank's share of Parquet files, epoch by epoch, in batches of numpy arrays.

A thread reads ahead. It gathers row groups in a pool of about `pool_rows` rows, mixes its rows, and hands it over; so never
more than three pools are in memory, however large the data is.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corro.spark.common._columns import to_numpy
from corro.spark.common._shares import Piece, Slice, batch_sizes, share, steps_per_epoch

__all__ = ["POOL_ROWS", "Batch", "BatchReader", "find_pieces", "stacked"]

Batch = dict[str, np.ndarray]

# How many rows are mixed with each other, unless said otherwise.
POOL_ROWS = 65_536
_MUST_BE_SHARED = "a store is a place that the driver and all executors share (a mounted folder, HDFS, an object store)"


def find_pieces(store: Any, path: str) -> list[Piece]:
    """The row groups of all Parquet files below a folder of a store, or of one file."""
    pieces = []
    for name in [name for name in store.files(path) if _is_data(name)]:
        with store.fs.open(name, "rb") as file:
            about = pq.ParquetFile(file).metadata
            pieces += [Piece(name, group, about.row_group(group).num_rows) for group in range(about.num_row_groups)]
    if not any(piece.rows for piece in pieces):
        raise ValueError(f"{socket.gethostname()} sees no rows in Parquet files below {path}: {_MUST_BE_SHARED}.")
    return pieces


def _is_data(name: str) -> bool:
    # What begins so is somebody's note, or not finished.
    return name.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in name.split("/")[-1:])


class BatchReader:
    """The rows of `rank` among `size`. `columns` are those that are read; all, if none are named.

    `transform` takes and gives a `pandas.DataFrame` (`transformation_fn` of an estimator). `steps` limits an epoch, or
    prolongs it: the reader then goes on with the next order of rows, so that all are seen equally often in the long run.
    """

    def __init__(
        self,
        fs: Any,
        pieces: Sequence[Piece],
        columns: Sequence[str] | None = None,
        *,
        rank: int = 0,
        size: int = 1,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int | None = None,
        steps: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        pool_rows: int = POOL_ROWS,
        keep: bool = False,
    ) -> None:
        self._fs = fs
        self._pieces = list(pieces)
        self._columns = list(columns) if columns is not None else None
        self._rank, self._size = rank, size
        self._batch_size = batch_size
        self._seed = (0 if seed is None else seed) if shuffle else None
        self._transform = transform
        self._pool_rows = max(pool_rows, batch_size)
        self._kept: dict[Piece, Batch] | None = {} if keep else None
        self._natural = steps_per_epoch(sum(piece.rows for piece in self._pieces), size, batch_size)
        self._steps = steps or self._natural
        # The order of rows that comes next, and what is left of the last one, if an epoch is shorter than it.
        self._round = 0
        self._left: Iterator[Batch] = iter(())

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        """One epoch. The next call gives the next one."""
        if self._steps == self._natural:
            yield from self._rounds()
            return
        for _ in range(self._steps):
            batch = next(self._left, None)
            if batch is None:
                self._left = self._rounds()
                batch = next(self._left)
            yield batch

    def _rounds(self) -> Iterator[Batch]:
        """Every row of this rank's share once."""
        slices = share(self._pieces, self._rank, self._size, self._round, self._seed)
        order = self._round
        self._round += 1
        rows = sum(piece.stop - piece.start for piece in slices)
        sizes = iter(batch_sizes(rows, self._batch_size, self._natural))
        rest: Batch | None = None
        want: int | None = next(sizes)
        for pool in _ahead(self._pools(slices, order)):
            rest = pool if rest is None else _joined([rest, pool])
            at, count = 0, _length(rest)
            while want is not None and count - at >= want:
                yield {name: column[at : at + want] for name, column in rest.items()}
                at += want
                want = next(sizes, None)
            rest = {name: column[at:] for name, column in rest.items()}

    def _pools(self, slices: Sequence[Slice], order: int) -> Iterator[Batch]:
        """Pools of rows, mixed if that is wanted."""
        mixer = np.random.default_rng([self._seed, order, self._rank]) if self._seed is not None else None
        gathered: list[Batch] = []
        for number, piece in enumerate(slices):
            gathered.append(self._read(piece))
            if sum(map(_length, gathered)) >= self._pool_rows or number == len(slices) - 1:
                pool = _joined(gathered)
                gathered = []
                if mixer is not None:
                    mixed = mixer.permutation(_length(pool))
                    pool = {name: column[mixed] for name, column in pool.items()}
                yield pool

    def _read(self, part: Slice) -> Batch:
        whole = self._kept.get(part.piece) if self._kept is not None else None
        if whole is None:
            whole = self._convert(_read_group(self._fs, part.piece, self._columns))
            if self._kept is not None:
                self._kept[part.piece] = whole
        if _length(whole) != part.piece.rows:
            raise ValueError(
                f"transformation_fn made {_length(whole)} rows of {part.piece.rows}: it must give one row for each."
            )
        return {name: column[part.start : part.stop] for name, column in whole.items()}

    def _convert(self, table: pa.Table) -> Batch:
        if self._transform is None:
            return {name: to_numpy(table.column(name)) for name in table.column_names}
        frame = self._transform(table.to_pandas())
        return {str(name): stacked(frame[name].to_numpy()) for name in frame.columns}


def _read_group(fs: Any, piece: Piece, columns: Sequence[str] | None) -> pa.Table:
    try:
        with fs.open(piece.path, "rb") as file:
            return pq.ParquetFile(file, pre_buffer=True).read_row_group(piece.group, columns=columns)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{socket.gethostname()} does not see {piece.path}, which was there before: {_MUST_BE_SHARED}."
        ) from error


def stacked(column: np.ndarray) -> np.ndarray:
    """Arrays in a column of pandas' as rows of one array, if they are of one shape."""
    if column.dtype != object or not len(column) or not isinstance(column[0], (np.ndarray, list, tuple)):
        return column
    rows = [np.asarray(row) for row in column]
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else column


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values()))) if batch else 0


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    filled = [batch for batch in batches if _length(batch)] or list(batches[:1])
    return {name: np.concatenate([batch[name] for batch in filled]) for name in filled[0]}


def _ahead(pools: Iterator[Batch]) -> Iterator[Batch]:
    """The same, made by a thread that is one pool ahead. What it raises is raised here."""
    ready: queue.Queue[Any] = queue.Queue(maxsize=1)
    unwanted = threading.Event()

    def put(item: Any) -> bool:
        while not unwanted.is_set():
            try:
                ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for pool in pools:
                if not put(pool):
                    return
            put(None)
        except BaseException as error:
            put(error)

    threading.Thread(target=produce, daemon=True, name="corro-reader").start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        unwanted.set()
