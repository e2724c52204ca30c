"""What the examples that measure share: options, the training step, the timed loop, and what rank 0 prints."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tqdm import tqdm

import corro.tensorflow as hvd


def options(description: str | None, batch_size: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=batch_size, help="of each rank")
    parser.add_argument("--warmup", type=int, default=3, help="iterations before the clock starts")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of each rank, for arithmetic")
    parser.add_argument("--fp16", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("--xla", action="store_true", help="compile the step with XLA")
    chosen = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(chosen.threads)
    return chosen


def training_step(
    model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer, chosen: argparse.Namespace
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """One step with gradients averaged over the ranks, which start from the same weights."""
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compression = hvd.Compression.fp16 if chosen.fp16 else hvd.Compression.none
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables + optimizer.variables, root_rank=0)

    @tf.function(jit_compile=chosen.xla)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def images_of(chosen: argparse.Namespace) -> tuple[tf.Tensor, tf.Tensor]:
    """A batch of generated images of ImageNet's shape."""
    images = tf.random.normal([chosen.batch_size, 224, 224, 3])
    return images, tf.random.uniform([chosen.batch_size], 0, 1000, tf.int32)


def measure(step: Callable[[], object], chosen: argparse.Namespace, each: bool = False) -> None:
    """Runs `step` again and again; rank 0 tells images per second, and every iteration's time if `each`."""
    for _ in range(chosen.warmup):
        step()
    times: list[float] = []
    hvd.barrier()
    progress = tqdm(range(chosen.iterations), unit="iteration", disable=hvd.rank() != 0 or each)
    for number in progress:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
        if each and hvd.rank() == 0:
            print(f"iteration {number + 1:3d}   {times[-1] * 1e3:8.1f} ms", flush=True)
    median = statistics.median(times)
    rate = float(hvd.allreduce(tf.constant(chosen.batch_size / median), op=hvd.Sum, name="rate"))
    if hvd.rank() == 0:
        print(f"ranks {hvd.size()}   median iteration {median * 1e3:.1f} ms   {rate:,.1f} images/s in all", flush=True)
