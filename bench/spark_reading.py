#!/usr/bin/env python3
"""How fast a rank reads rows: a million rows of 100 floats in Parquet files, as batches of torch tensors.

    .venv-test-spark/bin/python bench/spark_reading.py [--rows 1000000] [--rounds 3]

Beside Corro's data module: an `IterableDataset` that decodes rows one by one out of pandas, as Petastorm does, in torch's
`DataLoader`. Both read the same files, in the order of the files, in one process and in turn; Corro is measured a second time
with its rows in another order, as trainings have them. Who begins changes from round to round. One JSON line a round; the
last one has the medians, and how many times as fast as the peer Corro was in each round.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from corro.spark.common.datamodule import ParquetDataModule

COLUMNS, BATCH, FILES = 100, 1024, 8
PEER = "rows of pandas"


def write(folder: str, rows: int) -> None:
    chance = np.random.default_rng(0)
    for part, ids in enumerate(np.array_split(np.arange(rows), FILES)):
        floats = pa.array(chance.random(len(ids) * COLUMNS, np.float32))
        features = pa.FixedSizeListArray.from_arrays(floats, COLUMNS).cast(pa.list_(pa.float32()))
        pq.write_table(pa.table({"id": ids, "x": features}), f"{folder}/part-{part}.parquet", row_group_size=16_384)


def corro(folder: str, shuffle: bool) -> Any:
    with ParquetDataModule(folder, "", has_val=False, train_batch_size=BATCH, shuffle=shuffle) as data:
        for batch in data.train_data():
            yield batch["id"], torch.from_numpy(batch["x"])


class Rows(torch.utils.data.IterableDataset):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __iter__(self) -> Any:
        for path in sorted(glob.glob(f"{self.folder}/*.parquet")):
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group).to_pandas().itertuples(index=False):
                    yield row.id, torch.from_numpy(np.array(row.x))


def rate(batches: Any, rows: int) -> float:
    """Rows a second. Every row must come once, with all of its numbers."""
    seen = np.zeros(rows, bool)
    began = time.perf_counter()
    for ids, x in batches:
        assert x.shape == (len(ids), COLUMNS)
        seen[np.asarray(ids)] = True
    took = time.perf_counter() - began
    assert seen.all(), "rows are missing"
    return rows / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(folder, options.rows)
        readers = {
            "corro": lambda: corro(folder, shuffle=False),
            PEER: lambda: torch.utils.data.DataLoader(Rows(folder), batch_size=BATCH),
            "corro, shuffled": lambda: corro(folder, shuffle=True),
        }
        found: dict[str, list[float]] = {name: [] for name in readers}
        names = list(readers)
        for number in range(options.rounds):
            for name in names[number % 3 :] + names[: number % 3]:
                found[name].append(rate(readers[name](), options.rows))
            one = {name: round(rates[-1]) for name, rates in found.items()}
            print(json.dumps({"round": number, "rows/s": one, "load": os.getloadavg()[0]}), flush=True)
    medians = {name: round(statistics.median(rates)) for name, rates in found.items()}
    ratios = {
        name: [round(ours / theirs, 1) for ours, theirs in zip(rates, found[PEER], strict=True)]
        for name, rates in found.items()
        if name != PEER
    }
    print(json.dumps({"rows": options.rows, "median rows/s": medians, "times the peer": ratios}))


if __name__ == "__main__":
    main()
