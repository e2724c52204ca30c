"""What the examples that measure share: options, the timed loop, and what rank 0 prints."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

import corro.torch as hvd


def options(
    description: str | None, batch_size: int, image_size: int | None = None, modes: bool = False
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=batch_size, help="of each rank")
    parser.add_argument("--warmup", type=int, default=3, help="iterations before the clock starts")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    if image_size:
        parser.add_argument("--image-size", type=int, default=image_size, help="pixels of a side, 64 or more")
    parser.add_argument("--fp16", action="store_true", help="send gradients as 16-bit floats")
    if modes:
        parser.add_argument("--mode", choices=["allreduce", "ps"], default="allreduce", help="ps: by parameter servers")
        parser.add_argument("--staleness", type=int, default=0, help="ps: how many steps a rank may be ahead of others")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    return chosen


def distributed(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, fp16: bool, **more: Any
) -> torch.optim.Optimizer:
    """The optimizer with gradients averaged over ranks, which start from the same weights."""
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    compression = hvd.Compression.fp16 if fp16 else hvd.Compression.none
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression, **more)


def measure(step: Callable[[], float | None], chosen: argparse.Namespace, each: bool = False) -> None:
    """Runs `step` again and again; rank 0 tells images per second, and every iteration's time and loss if `each`."""
    for _ in range(chosen.warmup):
        step()
    times: list[float] = []
    hvd.barrier()
    progress = tqdm(range(chosen.iterations), unit="iteration", disable=hvd.rank() != 0 or each)
    for number in progress:
        start = time.perf_counter()
        loss = step()
        times.append(time.perf_counter() - start)
        # For whoever watches (corro run --page, --record); images of all ranks, each of which says the same or nearly so.
        hvd.log(step=number + 1, images_per_second=hvd.size() * chosen.batch_size / times[-1])
        if each and hvd.rank() == 0:
            end = "" if loss is None else f"   loss {loss:.3f}"
            print(f"iteration {number + 1:3d}   {times[-1] * 1e3:8.1f} ms{end}", flush=True)
    rate = hvd.allreduce(torch.tensor(chosen.batch_size / statistics.median(times)), op=hvd.Sum, name="rate").item()
    if hvd.rank() == 0:
        median = statistics.median(times) * 1e3
        print(f"ranks {hvd.size()}   median iteration {median:.1f} ms   {rate:,.1f} images/s in all", flush=True)
