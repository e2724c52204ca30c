#!/usr/bin/env python3
"""From a DataFrame to ranks: a million rows of 100 floats are written to a store and read by 1, 2 and 3 ranks on Spark.

    .venv-test-spark/bin/python bench/spark_rows.py [--rows 1000000]

On an application with three executors (`local-cluster`). Every row has a number; that each is read once, by one rank, is
checked by what the ranks have noted down. Rates are rows a second of all ranks together, from the first batch to the last of
the slowest rank, so without the start of processes. `bench/spark_reading.py` has the peer.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

import numpy as np
from spark_session import session

COLUMNS, BATCH = 100, 1024


def frame_of(spark: Any, rows: int) -> Any:
    def fill(batches: Any) -> Any:
        import pyarrow as pa

        for batch in batches:
            ids = batch.column("id")
            chance = np.random.default_rng(ids[0].as_py() if len(ids) else 0)
            numbers = pa.array(chance.random(len(ids) * COLUMNS, np.float32))
            floats = pa.FixedSizeListArray.from_arrays(numbers, COLUMNS).cast(pa.list_(pa.float32()))
            yield pa.RecordBatch.from_arrays([ids, floats], names=["id", "x"])

    return spark.range(0, rows, 1, 12).mapInArrow(fill, "id long, x array<float>")


def read(store: Any, folder: str, rows: int) -> tuple[bytes, float, float]:
    """On a rank: which rows it has read (a bit for each), and when it began and ended."""
    import corro.numpy as hvd
    from corro.spark.common.datamodule import ParquetDataModule

    hvd.init()
    seen = np.zeros(rows, bool)
    module = ParquetDataModule(
        folder, "", has_val=False, train_batch_size=BATCH, cur_shard=hvd.rank(), shard_count=hvd.size(), store=store
    )
    with module as data:
        batches = data.train_data()
        hvd.barrier()
        began = time.time()
        for batch in batches:
            assert batch["x"].shape == (len(batch["id"]), COLUMNS)
            assert not seen[batch["id"]].any(), "a row was read twice"
            seen[batch["id"]] = True
    return np.packbits(seen).tobytes(), began, time.time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    import corro.spark
    from corro.spark.common._prepare import prepare
    from corro.spark.common.store import Store

    spark = session("spark_rows", 3)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(folder)
        began = time.time()
        made = prepare(frame_of(spark, rows), store, ["id", "x"], None, 30, seed=0)
        assert made.train_rows == rows
        print(json.dumps({"written": rows, "rows/s": round(rows / (time.time() - began))}), flush=True)
        for ranks in (1, 2, 3):
            given = corro.spark.run(read, (store, store.get_train_data_path(made.idx), rows), num_proc=ranks)
            masks = [np.unpackbits(np.frombuffer(mask, np.uint8), count=rows) for mask, _, _ in given]
            assert (np.sum(masks, axis=0) == 1).all(), "a row was read twice, or not at all"
            took = max(ended for _, _, ended in given) - min(start for _, start, _ in given)
            told = {"ranks": ranks, "every row once": True, "rows/s": round(rows / took), "load": os.getloadavg()[0]}
            print(json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
