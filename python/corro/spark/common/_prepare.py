"""From a DataFrame to Parquet files in a store, written by Spark's tasks in one pass: training rows and validation rows.

Tasks write through the store's own file system, so Spark needs no connector for it. A task that Spark repeats writes files
of other names; only what the tasks that succeeded have named is kept.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corro.spark.common.store import FilesystemStore
from corro.spark.common.util import check_validation

__all__ = ["Prepared", "prepare"]

# A row group is what is read at once: large enough to be read fast, small enough for many to be mixed.
_GROUP_BYTES = 8 << 20
_GROUP_ROWS = 16_384
# How long what executors have written may take to be seen by the driver.
_SEEN_SECONDS = 30.0

# What was prepared of each DataFrame in this process: fitting it again writes nothing. Another DataFrame of the same making
# is not the same: the files or tables behind it may have other rows by then.
_known: weakref.WeakKeyDictionary[Any, dict[Any, Prepared]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@dataclass(frozen=True)
class Prepared:
    """Rows that lie in a store: under which number, and how many."""

    idx: int
    train_rows: int
    val_rows: int


def prepare(
    frame: Any,
    store: FilesystemStore,
    columns: Sequence[str],
    validation: float | str | None,
    partitions: int,
    seed: int | None,
) -> Prepared:
    """Writes the columns of a DataFrame. `validation` is a share of the rows, chosen at random, or a column that says it."""
    _check_columns(frame, columns)
    held_out = _held_out(frame, validation)
    key = (tuple(columns), validation, store.get_train_data_path(), store.get_val_data_path(), seed)
    with _lock:
        of_frame = _known.setdefault(frame, {})
        known = of_frame.get(key)
        if known is not None and store.exists(store.get_train_data_path(known.idx)):
            return known
        of_frame[key] = _write(frame, store, columns, held_out, partitions, seed)
        return of_frame[key]


def _check_columns(frame: Any, columns: Sequence[str]) -> None:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        there = ", ".join(frame.columns)
        raise ValueError(f"the DataFrame has no column {', '.join(missing)}; it has {there}.")


def _held_out(frame: Any, validation: float | str | None) -> float | str | None:
    """What chooses the rows to validate with, if anything does."""
    check_validation(validation, frame)
    return validation or None


def _write(
    frame: Any,
    store: FilesystemStore,
    columns: Sequence[str],
    held_out: float | str | None,
    partitions: int,
    seed: int | None,
) -> Prepared:
    idx = _free_number(store)
    train, val = store.get_train_data_path(idx), store.get_val_data_path(idx)
    chosen = _plain(frame, [*columns, *([held_out] if isinstance(held_out, str) else [])])
    write = _writer(store, train, val, held_out, seed)
    with _described(frame, f"corro: rows of an estimator to {train}"):
        written = chosen.coalesce(partitions).mapInArrow(write, "path string, rows long, validation boolean").collect()
    _wait_until_seen(store, (train, val), {row.path for row in written})
    for folder in (train, val):
        _keep_only(store, folder, {row.path for row in written})
    rows = [sum(row.rows for row in written if row.validation == wanted) for wanted in (False, True)]
    if not rows[0]:
        raise ValueError("there are no rows to train with: the DataFrame is empty, or all of it is for validation.")
    if held_out is not None and not rows[1]:
        raise ValueError(f"there are no rows to validate with: validation={held_out!r} chooses none.")
    return Prepared(idx, *rows)


@contextmanager
def _described(frame: Any, text: str) -> Iterator[None]:
    """What Spark's pages say of the jobs inside, unless the user has said something himself."""
    from pyspark.sql.utils import is_remote

    if is_remote():  # a client of Spark Connect can't describe its jobs
        yield
        return
    context = frame.sparkSession.sparkContext
    own = context.getLocalProperty("spark.job.description")
    if own is None:
        context.setJobDescription(text)
    try:
        yield
    finally:
        if own is None:
            context.setLocalProperty("spark.job.description", None)


def _free_number(store: FilesystemStore) -> int:
    """A number that nobody has used in this store. The folder is made, so that nobody else takes it."""
    idx = 0
    while store.exists(store.get_train_data_path(idx)) or store.exists(store.get_val_data_path(idx)):
        idx += 1
    store.write_text(f"{store.get_train_data_path(idx)}/_corro", "rows of a DataFrame, written by corro.spark\n")
    return idx


def _plain(frame: Any, columns: Sequence[str]) -> Any:
    """Those columns, vectors as arrays: Arrow does not know Spark's vectors."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import functions

    is_vector = {field.name: isinstance(field.dataType, VectorUDT) for field in frame.schema.fields}
    return frame.select(
        *[
            vector_to_array(functions.col(f"`{name}`"), dtype="float64").alias(name)
            if is_vector[name]
            else functions.col(f"`{name}`")
            for name in dict.fromkeys(columns)
        ]
    )


def _wait_until_seen(store: FilesystemStore, folders: Sequence[str], names: set[str]) -> None:
    """What executors have written must be there for the driver, too; mounted folders may take a moment."""
    until = time.monotonic() + _SEEN_SECONDS
    while missing := names - {path for folder in folders for path in store.files(folder)}:
        if time.monotonic() > until:
            raise ValueError(
                f"executors have written {len(names)} files to {folders[0]}, and the driver does not see {len(missing)} of "
                "them: the store must be a place that the driver and all executors share (a mounted folder, HDFS, an "
                "object store)."
            )
        time.sleep(0.1)


def _keep_only(store: FilesystemStore, folder: str, names: set[str]) -> None:
    """Removes what attempts that failed have left."""
    for path in store.files(folder):
        if path.endswith(".parquet") and path not in names:
            store.delete(path)


def _writer(
    store: FilesystemStore, train: str, val: str, held_out: float | str | None, seed: int | None
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What each task does with its rows."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        chance = np.random.default_rng([0 if seed is None else seed, partition])
        name = f"part-{partition:05}-{secrets.token_hex(8)}.parquet"
        files = {False: _File(store, f"{train}/{name}"), True: _File(store, f"{val}/{name}")}
        for batch in batches:
            for is_val, rows in _split(pa.table(batch.columns, names=batch.schema.names), held_out, chance):
                files[is_val].add(rows)
        for is_val, file in files.items():
            if file.close():
                columns = [pa.array([file.path]), pa.array([file.rows], pa.int64()), pa.array([is_val])]
                yield pa.RecordBatch.from_arrays(columns, names=["path", "rows", "validation"])

    return write


def _split(table: Any, held_out: float | str | None, chance: Any) -> list[tuple[bool, Any]]:
    """Rows to train with, and rows to validate with."""
    import pyarrow.compute as pc

    if held_out is None:
        return [(False, table)]
    if isinstance(held_out, str):
        given = table.column(held_out).cast("float64")
        mask = pc.fill_null(pc.greater(given, 0), False)
        table = table.drop_columns([held_out])
    else:
        import pyarrow as pa

        mask = pa.array(chance.random(len(table)) < held_out)
    return [(False, table.filter(pc.invert(mask))), (True, table.filter(mask))]


class _File:
    """A Parquet file of a store: made here, put there when it is complete."""

    def __init__(self, store: FilesystemStore, path: str) -> None:
        self._store = store
        self._url = path
        self.path = store.path(path)
        self.rows = 0
        self._waiting: list[Any] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._writer: Any = None

    def add(self, table: Any) -> None:
        if len(table):
            self._waiting.append(table)
            self.rows += len(table)
        if sum(len(t) for t in self._waiting) >= _GROUP_ROWS or sum(t.nbytes for t in self._waiting) >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._waiting:
            return
        group = pa.concat_tables(self._waiting)
        self._waiting = []
        if self._writer is None:
            self._folder = tempfile.TemporaryDirectory(prefix="corro-parquet-")
            self._writer = pq.ParquetWriter(Path(self._folder.name, "part"), group.schema, compression="zstd")
        self._writer.write_table(group, row_group_size=_GROUP_ROWS)

    def close(self) -> bool:
        """Whether there is a file at all."""
        self._flush()
        if self._writer is None or self._folder is None:
            return False
        self._writer.close()
        self._store.put(str(Path(self._folder.name, "part")), self._url)
        self._folder.cleanup()
        return True
