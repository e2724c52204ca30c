"""Columns of Arrow as arrays of numpy: lists of one length become rows of a matrix, Spark's vectors dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["to_numpy"]

# The fields of a vector of Spark's where it was not turned into an array: type 0 is sparse, 1 dense.
_VECTOR = {"type", "size", "indices", "values"}


def to_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """One row of the result for each row of the column. Missing numbers are NaN."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # what can't be combined, or had no chunk at all
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _rows(array)
    if pa.types.is_struct(kind) and {field.name for field in kind} == _VECTOR:
        return _vectors(array)
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    return array.to_numpy(zero_copy_only=False)


def _rows(array: Any) -> np.ndarray:
    if len(array) == 0:
        return np.empty((0, 0))
    lengths = pc.list_value_length(array)
    if array.null_count or pc.min(lengths).as_py() != pc.max(lengths).as_py():
        return np.array([None if row is None else np.asarray(row) for row in array.to_pylist()], dtype=object)
    values = to_numpy(array.flatten())
    return values.reshape(len(array), lengths[0].as_py(), *values.shape[1:])


def _vectors(array: Any) -> np.ndarray:
    if len(array) == 0:
        return np.empty((0, 0))
    is_dense = array.field("type").to_numpy(zero_copy_only=False) == 1
    counts = pc.fill_null(pc.list_value_length(array.field("values")), 0).to_numpy(zero_copy_only=False)
    sizes = array.field("size").to_numpy(zero_copy_only=False)
    sizes = np.where(is_dense, counts, np.nan_to_num(sizes)).astype(np.int64)
    width = int(sizes.max())
    if not (sizes == width).all():
        raise ValueError(
            f"a column has vectors of {int(sizes.min())} and of {width} elements: all must have the same length."
        )
    dense = np.zeros((len(array), width))
    values = pc.list_flatten(array.field("values")).to_numpy(zero_copy_only=False)
    of_row = np.repeat(np.arange(len(array)), counts)
    within = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.where(np.repeat(is_dense, counts), within, 0)
    indices = pc.list_flatten(array.field("indices")).to_numpy(zero_copy_only=False)
    places[~np.repeat(is_dense, counts)] = indices
    dense[of_row, places] = values
    return dense
