"""Where estimators keep their data, checkpoints and logs: a folder that the driver and all executors can reach.

One class serves every file system that `fsspec` knows (`file`, `s3`, `gs`, `abfs`, `hdfs`, `webhdfs`, `memory`, ...); the
others only say how a path is written. Whatever is written appears whole or not at all.

    <prefix>/intermediate_train_data[.N]   <prefix>/runs/<run id>/{checkpoint, logs/}
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

from corro import _native

__all__ = [
    "AbstractFilesystemStore",
    "DBFSLocalStore",
    "FilesystemStore",
    "HDFSStore",
    "LocalStore",
    "Store",
]

# An object appears with its last byte in these. Elsewhere a file is written under another name, and renamed.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "memory", "oss", "r2"}


class Store:
    """What an estimator asks of a store. `FilesystemStore` answers; `Store.create` makes the right one for a path.

    Example:
        >>> from corro.spark.common.store import Store
        >>> type(Store.create("hdfs://name.node:8020/models")).__name__
        'HDFSStore'
    """

    def is_parquet_dataset(self, path: str) -> bool:
        """Whether there are Parquet files under `path`."""
        raise NotImplementedError

    def get_parquet_dataset(self, path: str) -> Any:
        """The Parquet files under `path`, as `pyarrow.parquet.ParquetDataset`."""
        raise NotImplementedError

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Where the rows to train with lie; `idx` is the number of a data set."""
        raise NotImplementedError

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Where the rows to validate with lie."""
        raise NotImplementedError

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Where the rows to test with lie."""
        raise NotImplementedError

    def saving_runs(self) -> bool:
        """Whether checkpoints and logs are kept."""
        raise NotImplementedError

    def get_runs_path(self) -> str:
        """Where checkpoints and logs of all runs lie."""
        raise NotImplementedError

    def get_run_path(self, run_id: str) -> str:
        """Where those of one run lie."""
        raise NotImplementedError

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """The checkpoint of a run; None if runs are not kept."""
        raise NotImplementedError

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """All files of a run that end so."""
        raise NotImplementedError

    def get_logs_path(self, run_id: str) -> str | None:
        """The folder for logs of a run; None if runs are not kept."""
        raise NotImplementedError

    def get_checkpoint_filename(self) -> str:
        """What a checkpoint is called in its run's folder."""
        raise NotImplementedError

    def get_logs_subdir(self) -> str:
        """What the folder for logs is called in its run's folder."""
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """What a file holds."""
        raise NotImplementedError

    def write_text(self, path: str, text: str) -> None:
        """Writes a file, whole or not at all."""
        raise NotImplementedError

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], Any]:
        """A function that gives a context manager: a folder on this machine for what a run writes."""
        raise NotImplementedError

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that copies such a folder into the store."""
        raise NotImplementedError

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> SimpleNamespace:
        """The paths and functions of one run, for its processes."""
        raise NotImplementedError

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> FilesystemStore:
        """A store for this path: `hdfs://` by `HDFSStore`, DBFS on Databricks by `DBFSLocalStore`, else `FilesystemStore`.

        Example:
            >>> from corro.spark.common.store import Store
            >>> store = Store.create("/tmp/corro-store")
            >>> store.get_run_path("first")
            '/tmp/corro-store/runs/first'
        """
        if HDFSStore.matches(prefix_path):
            return HDFSStore(prefix_path, *args, **kwargs)
        if _native.foreign("DATABRICKS_RUNTIME_VERSION") and DBFSLocalStore.matches(prefix_path):
            return DBFSLocalStore(prefix_path, *args, **kwargs)
        return FilesystemStore(prefix_path, *args, **kwargs)


class FilesystemStore(Store):
    """A folder of any file system that `fsspec` knows, to which `storage_options` go.

    `train_path`, `val_path`, `test_path` and `runs_path` may be elsewhere. With `save_runs=False` neither checkpoints nor
    logs are kept.

    Example:
        >>> from corro.spark.common.store import FilesystemStore
        >>> store = FilesystemStore("memory://models")
        >>> store.write_text(store.get_run_path("first") + "/note", "begun")
        >>> store.read(store.get_run_path("first") + "/note")
        b'begun'
    """

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.prefix_path = self._normal(str(prefix_path))
        self.storage_options = dict(storage_options or {})
        self._paths = {
            "train": train_path or self._below("intermediate_train_data"),
            "val": val_path or self._below("intermediate_val_data"),
            "test": test_path or self._below("intermediate_test_data"),
        }
        self._runs_path = runs_path or self._below("runs")
        self._save_runs = save_runs
        self._checkpoint_filename = checkpoint_filename or self._usual_checkpoint
        self._options = {**self.storage_options, **kwargs}
        self._opened: Any = None

    _usual_checkpoint = "checkpoint"

    def __getstate__(self) -> dict[str, Any]:
        # Connections stay where they are; others open their own.
        return {**self.__dict__, "_opened": None}

    @property
    def fs(self) -> Any:
        """The file system, of `fsspec`."""
        if self._opened is None:
            try:
                import fsspec
            except ImportError as error:
                raise ImportError("stores need fsspec: pip install fsspec") from error
            self._opened = fsspec.core.url_to_fs(self.prefix_path, **self._options)[0]
        return self._opened

    def path(self, path: str) -> str:
        """A path of this store as its file system wants it: without the scheme."""
        return str(self.fs._strip_protocol(path))

    # Data.

    def get_train_data_path(self, idx: int | None = None) -> str:
        return self._numbered("train", idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        return self._numbered("val", idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        return self._numbered("test", idx)

    def is_parquet_dataset(self, path: str) -> bool:
        return any(name.endswith(".parquet") for name in self.files(path))

    def get_parquet_dataset(self, path: str) -> Any:
        import pyarrow.parquet

        return pyarrow.parquet.ParquetDataset(self.path(path), filesystem=self.fs)

    # Runs.

    def saving_runs(self) -> bool:
        return self._save_runs

    def get_runs_path(self) -> str:
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        if not run_id or "/" in run_id or run_id in (".", ".."):
            raise ValueError(f"run_id is {run_id!r}: it names a folder, so give a word without slashes.")
        return f"{self._runs_path}/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str | None:
        return f"{self.get_run_path(run_id)}/{self._checkpoint_filename}" if self._save_runs else None

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        found = [name for name in self.files(self.get_run_path(run_id)) if name.endswith(suffix)]
        return sorted(found)

    def get_logs_path(self, run_id: str) -> str | None:
        return f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}" if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        return self._checkpoint_filename

    def get_logs_subdir(self) -> str:
        return "logs"

    # Files.

    def exists(self, path: str) -> bool:
        return bool(self.fs.exists(self.path(path)))

    def files(self, path: str) -> list[str]:
        """All files below a folder; none if there is no such folder."""
        where = self.path(path)
        self.fs.invalidate_cache()  # others write, too
        return sorted(self.fs.find(where)) if self.fs.exists(where) else []

    def read(self, path: str) -> bytes:
        return bytes(self.fs.cat_file(self.path(path)))

    def write_text(self, path: str, text: str) -> None:
        self.write(path, text.encode())

    def write(self, path: str, content: bytes) -> None:
        """Whole or not at all: who reads it meanwhile reads what was there before."""
        where = self.path(path)
        with self._placing(where) as place:
            self.fs.pipe_file(place, content)

    def put(self, local: str, path: str) -> None:
        """As `write`, from a file of this machine."""
        where = self.path(path)
        with self._placing(where) as place:
            self.fs.put_file(local, place)

    def delete(self, path: str) -> None:
        """A file or a folder; nothing if there is none."""
        where = self.path(path)
        if self.fs.exists(where):
            self.fs.rm(where, recursive=True)

    @contextmanager
    def _placing(self, where: str) -> Iterator[str]:
        """Where to write what is to be found at `where` once it is complete."""
        folder, name = where.rpartition("/")[::2]
        if self._is_object_store():
            yield where
            return
        if folder:
            self.fs.makedirs(folder, exist_ok=True)
        hidden = f"{folder}/.{name}.{secrets.token_hex(8)}"
        try:
            yield hidden
            if self._is_local():
                os.replace(hidden, where)
                return
            if self.fs.exists(where):
                # Renaming does not replace there. Who reads just now finds nothing for a moment, but never a part.
                self.fs.rm(where)
            self.fs.mv(hidden, where)
        except BaseException:
            if self.fs.exists(hidden):
                self.fs.rm(hidden)
            raise

    def _is_object_store(self) -> bool:
        return bool(_OBJECT_STORES & set(self._protocols()))

    def _is_local(self) -> bool:
        return "file" in self._protocols()

    def _protocols(self) -> tuple[str, ...]:
        protocol = self.fs.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    # For the processes of a run.

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], Any]:
        return _local_folder

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        run_path = self.get_run_path(run_id)

        def sync(local_run_path: str) -> None:
            root = Path(local_run_path)
            for file in sorted(root.rglob("*")):
                if file.is_file():
                    self.put(str(file), f"{run_path}/{file.relative_to(root).as_posix()}")

        return sync

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> SimpleNamespace:
        return SimpleNamespace(
            train_data_path=self.get_train_data_path(dataset_idx),
            val_data_path=self.get_val_data_path(dataset_idx),
            test_data_path=self.get_test_data_path(dataset_idx),
            saving_runs=self.saving_runs(),
            runs_path=self.get_runs_path(),
            run_path=self.get_run_path(run_id),
            checkpoint_path=self.get_checkpoint_path(run_id),
            logs_path=self.get_logs_path(run_id),
            checkpoint_filename=self.get_checkpoint_filename(),
            logs_subdir=self.get_logs_subdir(),
            get_local_output_dir=self.get_local_output_dir_fn(run_id),
            sync=self.sync_fn(run_id),
            store=self,
        )

    # Paths.

    def _numbered(self, kind: str, idx: int | None) -> str:
        return self._paths[kind] if idx is None else f"{self._paths[kind]}.{idx}"

    def _below(self, name: str) -> str:
        return f"{self.prefix_path}/{name}"

    @staticmethod
    def _normal(path: str) -> str:
        path = path.rstrip("/") or "/"
        # Executors run elsewhere than the driver: a path that depends on where one stands means nothing to them.
        return path if "://" in path or path.startswith("file:") else os.path.abspath(path)


# Horovod's name for what all file systems share.
AbstractFilesystemStore = FilesystemStore


class LocalStore(FilesystemStore):
    """A folder of this machine, or one that all hosts mount at the same place.

    Example:
        >>> from corro.spark.common.store import LocalStore
        >>> LocalStore("/mnt/shared").get_train_data_path(2)
        '/mnt/shared/intermediate_train_data.2'
    """


class HDFSStore(FilesystemStore):
    """A folder of Hadoop's file system: `hdfs://[host[:port]]/path`, or a path.

    `driver` is `libhdfs` (Arrow's, with a Java machine in each process), `native` (the package `hdfs-native`) or `webhdfs`.

    Example:
        >>> from corro.spark.common.store import HDFSStore
        >>> HDFSStore("hdfs://name.node:8020/models").get_runs_path()
        'hdfs://name.node:8020/models/runs'
    """

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        url = urlparse(prefix_path)
        if url.scheme not in ("", "hdfs"):
            raise ValueError(f"the scheme of {prefix_path!r} is {url.scheme!r}: HDFSStore takes hdfs://host:port/path.")
        if not url.path.strip("/"):
            raise ValueError(f"{prefix_path!r} has no path: give hdfs://host:port/path.")
        if driver not in _HDFS_DRIVERS:
            raise ValueError(f"driver is {driver!r}: it is one of {', '.join(_HDFS_DRIVERS)}.")
        self._connection = (host or url.hostname, port or url.port, user or url.username, kerb_ticket, extra_conf)
        self._driver = driver
        where = self._connection[0] or ""
        netloc = f"{where}:{self._connection[1]}" if where and self._connection[1] else where
        super().__init__(f"hdfs://{netloc}{url.path}", **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether a path is HDFS's."""
        return path.startswith("hdfs://")

    @property
    def fs(self) -> Any:
        if self._opened is None:
            self._opened = _HDFS_DRIVERS[self._driver](*self._connection, self._options)
        return self._opened


def _libhdfs(host: str | None, port: int | None, user: str | None, ticket: str | None, extra: Any, options: Any) -> Any:
    import fsspec

    given = {"host": host or "default", "port": port or 0, "user": user, "kerb_ticket": ticket, "extra_conf": extra}
    return fsspec.filesystem("hdfs", **{**given, **options})


def _native_hdfs(
    host: str | None, port: int | None, user: str | None, ticket: str | None, extra: Any, options: Any
) -> Any:
    from hdfs_native.fsspec import HdfsFileSystem

    return HdfsFileSystem(host=host, port=port, **{**dict(extra or {}), **options})


def _webhdfs(host: str | None, port: int | None, user: str | None, ticket: str | None, extra: Any, options: Any) -> Any:
    import fsspec

    return fsspec.filesystem("webhdfs", **{"host": host, "port": port, "user": user, **options})


_HDFS_DRIVERS = {"libhdfs": _libhdfs, "native": _native_hdfs, "webhdfs": _webhdfs}


class DBFSLocalStore(FilesystemStore):
    """A folder of Databricks' file system, by the path at which it is mounted.

    Example:
        >>> from corro.spark.common.store import DBFSLocalStore
        >>> DBFSLocalStore("dbfs:/models").get_runs_path()
        '/dbfs/models/runs'
    """

    _usual_checkpoint = "checkpoint.tf"
    _FORMS = re.compile(r"^(?:dbfs:/|/dbfs/|file:/dbfs/|file:///dbfs/)(?!/)(.*)$")

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(self.normalize_path(prefix_path), *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether a path is DBFS's."""
        return cls._FORMS.match(path) is not None

    @classmethod
    def normalize_path(cls, path: str) -> str:
        """Any way to write it as the path at which it is mounted."""
        found = cls._FORMS.match(path)
        if found is None:
            raise ValueError(f"{path!r} is no path of DBFS: give dbfs:/x, /dbfs/x, file:/dbfs/x or file:///dbfs/x.")
        return f"/dbfs/{found.group(1)}"


@contextmanager
def _local_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="corro-run-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
