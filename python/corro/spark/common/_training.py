"""What every training process of an estimator is told, whatever the framework, and how it keeps what it has reached.

Processes import no part of Spark for it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corro import _native
from corro.spark.common.store import FilesystemStore

__all__ = ["History", "Training", "as_input", "packed_arrays", "unpacked_arrays"]

# What was measured: for each name a number for each epoch.
History = dict[str, list[float]]


@dataclass(frozen=True)
class Training:
    """One training: its rows, its name in the store, and the estimator's parameters."""

    store: FilesystemStore
    run_id: str
    train_dir: str
    val_dir: str | None
    options: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    def columns(self) -> list[str]:
        """What is read of each row."""
        weight = self["sample_weight_col"]
        return list(dict.fromkeys([*self["feature_cols"], *self["label_cols"], *([weight] if weight else [])]))

    def data(self, rank: int, size: int) -> Any:
        """The data module of one process."""
        from corro.spark.common.datamodule import ParquetDataModule

        module = self["data_module"] or ParquetDataModule
        return module(
            self.train_dir,
            self.val_dir or "",
            num_train_epochs=self["epochs"],
            has_val=self.val_dir is not None,
            train_batch_size=self["batch_size"],
            val_batch_size=self["val_batch_size"] or self["batch_size"],
            shuffle=self["shuffle"],
            transform_fn=self["transformation_fn"],
            inmemory_cache_all=self["inmemory_cache_all"],
            cur_shard=rank,
            shard_count=size,
            # What a transformation makes of them is not known before.
            schema_fields=self.columns() if self["transformation_fn"] is None else None,
            storage_options=self.store.storage_options,
            steps_per_epoch_train=self["train_steps_per_epoch"],
            steps_per_epoch_val=self["validation_steps_per_epoch"],
            verbose=self["verbose"],
            seed=self["random_seed"],
            pool_rows=self["shuffle_buffer_size"],
            store=self.store,
        )

    def read_checkpoint(self) -> bytes | None:
        """What this run has reached before, if it has."""
        path = self.store.get_checkpoint_path(self.run_id)
        return self.store.read(path) if path is not None and self.store.exists(path) else None

    def keep(self, checkpoint: bytes | None, epoch: int, history: History) -> None:
        """On rank 0, after each epoch: what it has reached goes to the store, what was measured also to whoever reads."""
        path, logs = self.store.get_checkpoint_path(self.run_id), self.store.get_logs_path(self.run_id)
        if path is not None and checkpoint is not None:
            self.store.write(path, checkpoint)
        if logs is not None:
            self.store.write_text(f"{logs}/history.json", json.dumps({"epoch": epoch, **history}))
        # For the launcher's page, and for TensorBoard.
        if _native.is_watched():
            for name, values in history.items():
                _native.log_value(epoch, name, values[-1])
        if self["verbose"]:
            shown = ", ".join(f"{name} {values[-1]:.6g}" for name, values in history.items())
            print(f"epoch {epoch} of {self['epochs']}: {shown}", flush=True)

    def keep_logs(self, folder: str) -> None:
        """On the driver: a folder of this machine becomes part of the run's logs."""
        logs = self.store.get_logs_path(self.run_id)
        for file in sorted(Path(folder).rglob("*")):
            if logs is not None and file.is_file():
                self.store.put(str(file), f"{logs}/{file.relative_to(folder).as_posix()}")

    def inputs(self, batch: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The features of a batch, in the order and the shapes that the model wants."""
        return _shaped(batch, self["feature_cols"], self.options.get("input_shapes"))

    def labels(self, batch: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return _shaped(batch, self["label_cols"], self["label_shapes"])

    def weights(self, batch: Mapping[str, np.ndarray]) -> np.ndarray | None:
        name = self["sample_weight_col"]
        return as_input(batch[name], None) if name else None


def _shaped(batch: Mapping[str, np.ndarray], names: Sequence[str], shapes: Any) -> list[np.ndarray]:
    missing = [name for name in names if name not in batch]
    if missing:
        raise ValueError(
            f"there is no column {', '.join(missing)} in the rows that were read; they have {', '.join(batch)}."
        )
    wanted = shapes or [None] * len(names)
    return [as_input(batch[name], shape) for name, shape in zip(names, wanted, strict=True)]


def as_input(array: np.ndarray, shape: Sequence[int] | None) -> np.ndarray:
    """A column of a batch: doubles as floats, which models compute with, in the shape that the model wants.

    A shape may begin with -1, for the number of rows, or leave it out.
    """
    if array.dtype == object:
        raise ValueError("a column must hold numbers, or lists of equal length. Convert it by a transformation_fn.")
    array = np.ascontiguousarray(array.astype(np.float32) if array.dtype == np.float64 else array)
    if shape is None:
        return array
    sizes = [int(size) for size in shape]
    return array.reshape(len(array), *(sizes[1:] if sizes[:1] == [-1] else sizes))


def packed_arrays(arrays: Sequence[np.ndarray], about: Mapping[str, Any]) -> bytes:
    """Arrays and some words about them as bytes that are read without running anything."""
    kinds = [str(array.dtype) for array in arrays]
    # Types that numpy has not by itself (bfloat16 and its kin) travel as bytes.
    plain = [array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array for array in arrays]
    written = io.BytesIO()
    words = np.array(json.dumps({"kinds": kinds, "about": dict(about)}))
    np.savez(written, words, *plain)
    return written.getvalue()


def unpacked_arrays(content: bytes) -> tuple[list[np.ndarray], dict[str, Any]]:
    """What `packed_arrays` was given."""
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        words = json.loads(str(found["arr_0"]))
        arrays = [found[f"arr_{at + 1}"] for at in range(len(words["kinds"]))]
    return [_as_kind(array, kind) for array, kind in zip(arrays, words["kinds"], strict=True)], words["about"]


def _as_kind(array: np.ndarray, kind: str) -> np.ndarray:
    if str(array.dtype) == kind:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, kind))
