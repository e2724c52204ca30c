"""How many images per second a small convolutional network trains on random images.

corro run -np 2 python examples/jax/synthetic_benchmark.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import corro.jax as hvd


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(3, 32, (7, 7), strides=4, rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), strides=2, rngs=rngs)
        self.conv3 = nnx.Conv(64, 128, (3, 3), strides=2, rngs=rngs)
        self.output = nnx.Linear(128, 1000, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in (self.conv1, self.conv2, self.conv3):
            x = nnx.relu(layer(x))
        return self.output(x.mean((1, 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--warmup", type=int, default=3, help="iterations before the clock starts")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--bf16", action="store_true", help="send gradients as 16-bit floats")
    options = parser.parse_args()

    hvd.init()
    graph, params = nnx.split(Net(nnx.Rngs(hvd.rank())))
    params = hvd.broadcast_parameters(params)
    compression = hvd.Compression.bf16 if options.bf16 else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.01), compression=compression)
    state = optimizer.init(params)
    images = jax.random.normal(jax.random.key(hvd.rank()), (options.batch_size, 224, 224, 3))
    labels = jnp.arange(options.batch_size)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            logits = nnx.merge(graph, params)(images)
            value: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
            return value

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    times: list[float] = []
    for _ in range(options.warmup + options.iterations):
        start = time.perf_counter()
        params, state = jax.block_until_ready(step(params, state))
        times.append(time.perf_counter() - start)
    median = statistics.median(times[options.warmup :])
    rate = hvd.allreduce(jnp.float32(options.batch_size / median), op=hvd.Sum, name="rate")
    if hvd.rank() == 0:
        print(
            f"ranks {hvd.size()}   median iteration {median * 1e3:.1f} ms   {float(rate):,.1f} images/s in all",
            flush=True,
        )


if __name__ == "__main__":
    main()
