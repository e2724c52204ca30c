"""How fast ranks read rows: a million rows of 100 floats in Parquet files, as batches of torch tensors.

    .venv-test-spark/bin/python bench/spark_reading.py [rows]

Beside Corro's data module: an `IterableDataset` that decodes rows one by one out of pandas, as Petastorm does, in torch's `DataLoader`.
Both read the same files in one process and in turn; the rate is rows a second, the best of three.
"""

from __future__ import annotations

import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from corro.spark.common.datamodule import ParquetDataModule

COLUMNS, BATCH = 100, 1024


def write(folder: str, rows: int) -> None:
    chance = np.random.default_rng(0)
    for part in range(8):
        count = rows // 8
        features = pa.FixedSizeListArray.from_arrays(pa.array(chance.random(count * COLUMNS, np.float32)), COLUMNS)
        ids = pa.array(np.arange(part * count, (part + 1) * count))
        table = pa.table({"id": ids, "x": features.cast(pa.list_(pa.float32()))})
        pq.write_table(table, f"{folder}/part-{part}.parquet", row_group_size=16_384)


def corro(folder: str) -> tuple[int, float]:
    with ParquetDataModule(folder, "", has_val=False, train_batch_size=BATCH) as data:
        ids, total = [], 0.0
        for batch in data.train_data():
            x = torch.from_numpy(batch["x"])
            total += float(x[0, 0])
            ids.append(batch["id"])
    seen = np.concatenate(ids)
    assert len(np.unique(seen)) == len(seen)
    return len(seen), total


class Rows(torch.utils.data.IterableDataset):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __iter__(self):
        import glob

        for path in sorted(glob.glob(f"{self.folder}/*.parquet")):
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                frame = file.read_row_group(group).to_pandas()
                for row in frame.itertuples(index=False):
                    yield row.id, torch.from_numpy(np.array(row.x))


def rows_of_pandas(folder: str) -> tuple[int, float]:
    count, total = 0, 0.0
    for ids, x in torch.utils.data.DataLoader(Rows(folder), batch_size=BATCH):
        count += len(ids)
        total += float(x[0, 0])
    return count, total


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        write(folder, rows)
        best: dict[str, float] = {}
        for _ in range(3):
            for name, read in (("corro", corro), ("rows of pandas", rows_of_pandas)):
                begin = time.perf_counter()
                count, _ = read(folder)
                best[name] = max(best.get(name, 0.0), count / (time.perf_counter() - begin))
    for name, rate in best.items():
        print(f"{name:16} {rate:12,.0f} rows/s")
    print(f"ratio            {best['corro'] / best['rows of pandas']:12.1f}")


if __name__ == "__main__":
    main()
