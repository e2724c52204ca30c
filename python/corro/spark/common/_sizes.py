"""Whether columns have as many numbers as a model wants of them: asked before any process starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["check_sizes", "column_sizes"]


def column_sizes(store: Any, folder: str, names: Sequence[str]) -> dict[str, int]:
    """How many numbers the first row of the Parquet files below a folder has in each column."""
    import pyarrow.parquet as pq

    from corro.spark.common._columns import to_numpy

    for path in store.files(folder):
        if not path.endswith(".parquet"):
            continue
        with store.fs.open(path, "rb") as file:
            content = pq.ParquetFile(file)
            missing = [name for name in names if name not in content.schema_arrow.names]
            if missing:
                there = ", ".join(content.schema_arrow.names)
                raise ValueError(f"the files at {folder} have no column {', '.join(missing)}; they have {there}.")
            for batch in content.iter_batches(batch_size=1, columns=list(names)):
                return {name: int(to_numpy(batch.column(name)).size) for name in names}
    return {}


def check_sizes(sizes: Mapping[str, int], names: Sequence[str], shapes: Sequence[Sequence[int] | None] | None) -> None:
    """Raises `ValueError` if a column has not as many numbers as its shape, which may begin with -1 for the rows."""
    for name, shape in zip(names, shapes or (), strict=False):
        wanted = [int(length) for length in shape or ()]
        wanted = wanted[1:] if wanted[:1] == [-1] else wanted
        if shape is None or name not in sizes or any(length < 0 for length in wanted):
            continue
        if math.prod(wanted) != sizes[name]:
            raise ValueError(
                f"column {name} has {sizes[name]} numbers in each row, but the model wants {math.prod(wanted)}: {wanted}."
            )
