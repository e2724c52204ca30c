"""What the examples that measure share: options, the timed `fit`, and what rank 0 prints."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

import corro.keras as hvd


def options(description: str | None, batch_size: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=batch_size, help="of each rank")
    parser.add_argument("--warmup", type=int, default=3, help="iterations before the clock starts")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--fp16", action="store_true", help="send gradients as 16-bit floats")
    return parser.parse_args()


class Clock(keras.callbacks.Callback):
    """The time of every iteration; each is told by rank 0 if `each`."""

    def __init__(self, warmup: int, each: bool) -> None:
        super().__init__()
        self.times: list[float] = []
        self._warmup = warmup
        self._each = each
        self._start = 0.0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # The loss is there when the step is done: on JAX the call alone only starts it.
        if logs:
            float(logs["loss"])
        if batch < self._warmup:
            return
        self.times.append(time.perf_counter() - self._start)
        if self._each and hvd.rank() == 0:
            print(f"iteration {len(self.times):3d}   {self.times[-1] * 1e3:8.1f} ms", flush=True)


def train(model: keras.Model, optimizer: keras.optimizers.Optimizer, chosen: argparse.Namespace, each: bool) -> None:
    """Trains on generated images of ImageNet's shape; rank 0 tells images per second."""
    compression = hvd.Compression.fp16 if chosen.fp16 else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(hvd.rank())
    steps = chosen.warmup + chosen.iterations
    images = rng.normal(size=(chosen.batch_size, 224, 224, 3)).astype("float32")
    labels = rng.integers(0, 1000, int(chosen.batch_size))

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        while True:
            yield images, labels

    clock = Clock(chosen.warmup, each)
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(batches(), steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[broadcast, clock])
    median = statistics.median(clock.times)
    rate = hvd.size() * float(hvd.allreduce(chosen.batch_size / median, name="rate"))
    if hvd.rank() == 0:
        name = keras.backend.backend()
        print(
            f"{name}   ranks {hvd.size()}   median iteration {median * 1e3:.1f} ms   {rate:,.1f} images/s in all",
            flush=True,
        )
