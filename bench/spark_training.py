"""An epoch of the same PyTorch model on two ranks: under `corro.spark.run`, and under Spark's own `TorchDistributor`.

    .venv-test-spark/bin/python bench/spark_training.py [turns]

Both run the same function on the same rows in the tasks of one application (`local-cluster`, two executors of one core), in turn.
Under `TorchDistributor` gradients are averaged by `DistributedDataParallel` with Gloo, under Corro by its optimizer. The time
is rank 0's, of the epochs after the first; the best of all turns counts.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

ROWS, BATCH, EPOCHS = 8192, 32, 3


def model_and_rows(rank: int, size: int) -> tuple[Any, Any, Any]:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = [100, 512, 512, 512, 1]
    layers: list[Any] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    x = torch.randn(ROWS, 100)[rank::size]
    return torch.nn.Sequential(*layers[:-1]), x, x.sum(1, keepdim=True)


def epochs(model: Any, optimizer: Any, x: Any, y: Any) -> float:
    import torch

    took = []
    for _ in range(EPOCHS):
        begin = time.perf_counter()
        for at in range(0, len(x), BATCH):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[at : at + BATCH]), y[at : at + BATCH]).backward()
            optimizer.step()
        took.append(time.perf_counter() - begin)
    return min(took[1:])


def with_corro() -> float:
    import torch

    import corro.torch as hvd

    hvd.init()
    model, x, y = model_and_rows(hvd.rank(), hvd.size())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=list(model.named_parameters()))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return epochs(model, optimizer, x, y)


def with_gloo() -> float:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model, x, y = model_and_rows(dist.get_rank(), dist.get_world_size())
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    took = epochs(parallel, torch.optim.SGD(model.parameters(), lr=0.001), x, y)
    dist.destroy_process_group()
    return took


def main() -> None:
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    import corro.spark

    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("training")
    for name, value in {
        "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
    }.items():  # fmt: skip
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    best = {"corro.spark.run": 1e9, "TorchDistributor": 1e9}
    for _ in range(turns):
        env = {"OMP_NUM_THREADS": "1"}
        best["corro.spark.run"] = min(best["corro.spark.run"], corro.spark.run(with_corro, num_proc=2, env=env)[0])
        distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
        best["TorchDistributor"] = min(best["TorchDistributor"], distributor.run(with_gloo))
    session.stop()
    for name, seconds in best.items():
        print(f"{name:20} {seconds:6.3f} s an epoch of {ROWS // 2 // BATCH} steps")
    print(f"ratio                {best['TorchDistributor'] / best['corro.spark.run']:6.2f}")


if __name__ == "__main__":
    main()
