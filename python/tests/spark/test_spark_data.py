"""Stores and the reading of Parquet files: without a Spark application, with its environment."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corro.spark.common._columns import to_numpy
from corro.spark.common._reader import BatchReader, find_pieces
from corro.spark.common.datamodule import DataModule, NVTabularDataModule, ParquetDataModule, PetastormDataModule
from corro.spark.common.store import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store


def write_files(store: FilesystemStore, folder: str, rows: int, files: int = 3, group: int = 100) -> None:
    """Rows whose `id` says which they are, and whose `x` is made of it."""
    for part, ids in enumerate(np.array_split(np.arange(rows), files)):
        vectors = pa.array(np.outer(ids, [1.0, 2.0]).tolist(), pa.list_(pa.float64()))
        store.fs.makedirs(store.path(folder), exist_ok=True)
        with store.fs.open(f"{store.path(folder)}/part-{part}.parquet", "wb") as file:
            pq.write_table(pa.table({"id": ids, "x": vectors}), file, row_group_size=group)


@pytest.fixture(params=["local", "memory"])
def store(request: Any, tmp_path: Path) -> FilesystemStore:
    where = {"local": str(tmp_path), "memory": f"memory://{tmp_path.name}"}
    return Store.create(where[request.param])


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_row_once_in_each_epoch_in_equal_steps(store: FilesystemStore, size: int, shuffle: bool) -> None:
    write_files(store, store.get_train_data_path(), 1003)
    readers = [
        ParquetDataModule(
            store.get_train_data_path(), "", train_batch_size=32, shuffle=shuffle, cur_shard=rank, shard_count=size,
            schema_fields=["id", "x"], store=store, pool_rows=250, seed=3,
        ).train_data()
        for rank in range(size)
    ]  # fmt: skip
    orders = []
    for _epoch in range(2):
        batches = [list(reader) for reader in readers]
        assert len({len(of_rank) for of_rank in batches}) == 1
        ids = np.concatenate([batch["id"] for of_rank in batches for batch in of_rank])
        assert sorted(ids) == list(range(1003))
        for batch in (batch for of_rank in batches for batch in of_rank):
            assert np.array_equal(batch["x"], np.outer(batch["id"], [1.0, 2.0]))
            assert len(batch["id"]) <= 32
        orders.append(ids.tolist())
    assert (orders[0] != orders[1]) == shuffle
    # Rows of different files are mixed.
    assert (np.abs(np.diff(orders[0][:50])) > 200).any() == shuffle


def test_more_or_fewer_steps_than_there_are_rows_for(store: FilesystemStore) -> None:
    write_files(store, store.get_train_data_path(), 100, files=1, group=10)
    reader = BatchReader(
        store.fs, find_pieces(store, store.get_train_data_path()), ["id"], batch_size=10, steps=4, shuffle=False
    )
    epochs = [[batch["id"][0] for batch in reader] for _ in range(5)]
    assert epochs == [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90, 0, 10], [20, 30, 40, 50], [60, 70, 80, 90]]


def test_a_transformation_sees_pandas_and_must_keep_the_rows(store: FilesystemStore) -> None:
    write_files(store, store.get_train_data_path(), 50, files=1)
    pieces = find_pieces(store, store.get_train_data_path())

    def doubled(frame: Any) -> Any:
        frame["z"] = frame["id"] * 2
        return frame.drop(columns=["id"])

    (batch,) = BatchReader(store.fs, pieces, batch_size=64, transform=doubled, shuffle=False)
    assert set(batch) == {"x", "z"}
    assert batch["z"].tolist() == list(range(0, 100, 2))
    assert batch["x"].shape == (50, 2)
    with pytest.raises(ValueError, match="made 1 rows of 50"):
        list(BatchReader(store.fs, pieces, batch_size=64, transform=lambda frame: frame.head(1)))


def test_memory_is_bounded_and_the_thread_ends_with_whoever_reads(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    write_files(store, store.get_train_data_path(), 20_000, files=2, group=100)
    read: list[int] = []
    reader = BatchReader(
        store.fs, find_pieces(store, store.get_train_data_path()), ["id"], batch_size=10, pool_rows=100, shuffle=False
    )
    before = reader._read
    reader._read = lambda part: read.append(1) or before(part)  # type: ignore[method-assign,func-returns-value,assignment]
    batches = iter(reader)
    next(batches)
    for _ in range(20):
        threading.Event().wait(0.05)
    # One pool is in use, one waits to be taken, and one is held by the thread that can't hand it over.
    assert len(read) <= 3
    batches.close()  # type: ignore[attr-defined]
    for _ in range(100):
        if not [thread for thread in threading.enumerate() if thread.name == "corro-reader"]:
            return
        threading.Event().wait(0.05)
    raise AssertionError("the reading thread is left")


def test_what_fails_while_reading_ahead_is_raised_to_whoever_reads(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    write_files(store, store.get_train_data_path(), 300, files=3)
    pieces = find_pieces(store, store.get_train_data_path())
    os.unlink(pieces[-1].path)
    with pytest.raises(FileNotFoundError, match="a place that the driver and all executors share"):
        list(BatchReader(store.fs, pieces, batch_size=10, shuffle=False))
    # As on a host that has not mounted the folder.
    with pytest.raises(ValueError, match=r"sees no rows .* a place that the driver and all executors share"):
        find_pieces(store, f"{tmp_path}/elsewhere")


def test_columns_of_all_kinds() -> None:
    numbers = [("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
    vector = pa.struct([("type", pa.int8()), ("size", pa.int32()), *numbers])
    vectors = pa.array(
        [
            {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]},
            {"type": 0, "size": 3, "indices": [2], "values": [5.0]},
            {"type": 0, "size": 3, "indices": [], "values": []},
        ],
        vector,
    )
    assert to_numpy(vectors).tolist() == [[1, 2, 3], [0, 0, 5], [0, 0, 0]]
    assert to_numpy(vectors.slice(1)).tolist() == [[0, 0, 5], [0, 0, 0]]
    images = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.uint8())))
    assert to_numpy(images).shape == (2, 2, 2)
    assert to_numpy(images).dtype == np.uint8
    assert to_numpy(pa.chunked_array([[1.5], [2.5]])).tolist() == [1.5, 2.5]
    assert np.isnan(to_numpy(pa.array([1.0, None]))[1])
    assert to_numpy(pa.array([[1], [1, 2]])).dtype == object
    assert to_numpy(pa.array([b"x"])).tolist() == [b"x"]


def test_paths_and_names(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    assert store.get_train_data_path() == f"{tmp_path}/intermediate_train_data"
    assert store.get_val_data_path(3) == f"{tmp_path}/intermediate_val_data.3"
    assert store.get_checkpoint_path("r") == f"{tmp_path}/runs/r/checkpoint"
    assert store.get_logs_path("r") == f"{tmp_path}/runs/r/logs"
    assert LocalStore(str(tmp_path), save_runs=False).get_checkpoint_path("r") is None
    with pytest.raises(ValueError, match="without slashes"):
        store.get_run_path("../r")
    assert isinstance(Store.create("hdfs://h:8020/p"), HDFSStore)
    for wrong, why in {"s3://b/p": "scheme", "hdfs://h:8020": "no path"}.items():
        with pytest.raises(ValueError, match=why):
            HDFSStore(wrong)
    for form in ("dbfs:/x", "/dbfs/x", "file:/dbfs/x", "file:///dbfs/x"):
        assert DBFSLocalStore(form).get_checkpoint_path("r") == "/dbfs/x/runs/r/checkpoint.tf"
    with pytest.raises(ValueError, match="no path of DBFS"):
        DBFSLocalStore("/tmp/x")
    assert PetastormDataModule is ParquetDataModule
    with pytest.warns(UserWarning, match="not by NVTabular"):
        assert isinstance(NVTabularDataModule("train", "val"), ParquetDataModule)
    assert issubclass(ParquetDataModule, DataModule)


def test_files_are_there_whole_or_not_at_all(store: FilesystemStore, tmp_path: Path) -> None:
    path = f"{store.get_run_path('r')}/checkpoint"
    assert not store.exists(path)
    store.write_text(path, "first")
    store.write(path, b"second")
    assert store.read(path) == b"second"

    class Fails(Exception):
        pass

    def fail_half_way() -> None:
        with store._placing(store.path(path)) as place:
            if place != store.path(path):  # an object store shows nothing before the last byte
                store.fs.pipe_file(place, b"half")
            raise Fails

    with pytest.raises(Fails):
        fail_half_way()
    assert store.read(path) == b"second"
    assert [name.rpartition("/")[2] for name in store.files(store.get_run_path("r"))] == ["checkpoint"]
    with store.get_local_output_dir_fn("r")() as local:
        Path(local, "logs").mkdir()
        Path(local, "logs", "events").write_text("x", encoding="utf-8")
        Path(local, "a.ckpt").write_text("y", encoding="utf-8")
        store.to_remote("r").sync(local)
    assert not Path(local).exists()
    assert store.read(f"{store.get_logs_path('r')}/events") == b"x"
    assert [name.rpartition("/")[2] for name in store.get_checkpoints("r")] == ["a.ckpt"]
    store.delete(store.get_runs_path())
    assert store.files(store.get_runs_path()) == []


def test_a_store_travels_by_pickle(store: FilesystemStore) -> None:
    import cloudpickle

    store.write_text(f"{store.get_runs_path()}/note", "here")
    there = cloudpickle.loads(cloudpickle.dumps(store))
    assert there.read(f"{there.get_runs_path()}/note") == b"here"


def test_loaders_of_tensors_over_a_reader() -> None:
    from corro.spark.data_loaders import pytorch_data_loaders as loaders

    reader = [{"x": np.arange(5)}, {"x": np.arange(5, 9)}]

    def rows(loader: Any) -> list[list[int]]:
        return [batch["x"].tolist() for batch in loader]

    given: dict[str, Any] = {"reader": reader, "batch_size": 4, "shuffling_queue_capacity": 0}
    plain = [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert rows(loaders.PytorchDataLoader(**given)) == plain
    assert rows(loaders.PytorchDataLoader(**given, limit_step_per_epoch=2)) == plain[:2]
    mixed = rows(loaders.PytorchDataLoader(reader=reader, batch_size=4, shuffling_queue_capacity=9))
    assert sorted(row for batch in mixed for row in batch) == list(range(9))
    assert mixed != plain
    infinite = loaders.PytorchInfiniteDataLoader(**given, limit_step_per_epoch=2)
    assert [rows(infinite), rows(infinite)] == [plain[:2], [[8], [0, 1, 2, 3]]]
    ahead = loaders.PytorchAsyncDataLoader(**given, async_loader_queue_size=2)
    assert rows(ahead) == plain
    ahead.close_async_loader()
    kept = loaders.PytorchInmemDataLoader(**{**given, "reader": iter(reader)})
    assert [rows(kept), rows(kept)] == [plain, plain]
