"""Trains a small CNN of Flax NNX on scikit-learn's handwritten digits, on as many ranks as it is started with.

    corro run -np 2 python examples/jax/digits.py

The lines that make it distributed are marked. The test accuracy is at least 95 % on 1, 2 and 4 ranks.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import corro.jax as hvd


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.hidden = nnx.Linear(32 * 4 * 4, 64, rngs=rngs)
        self.output = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.conv1(x))
        x = nnx.max_pool(nnx.relu(self.conv2(x)), (2, 2), (2, 2))
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.output(x)


def digits() -> list[Any]:
    """Images and labels to train with, and to test with."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images.reshape(-1, 8, 8, 1) / 16, labels, test_size=0.2, random_state=0, stratify=labels)
    train_x, test_x, train_y, test_y = parts
    return [train_x.astype(np.float32), train_y, test_x.astype(np.float32), test_y]


def loss_of(graph: Any, params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    logits = nnx.merge(graph, params)(images)
    loss: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss


def accuracy_of(graph: Any, params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(jnp.argmax(nnx.merge(graph, params)(images), 1) == labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()

    hvd.init()  # 1: join the job
    train_x, train_y, test_x, test_y = digits()
    batch = options.batch_size // hvd.size()

    graph, params = nnx.split(Net(nnx.Rngs(hvd.rank())))
    params = hvd.broadcast_parameters(params, root_rank=0)  # 2: start from the same weights
    optimizer = hvd.DistributedOptimizer(optax.adam(options.lr))  # 3: gradients are averaged
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(lambda p: loss_of(graph, p, images, labels))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    start = time.perf_counter()
    for epoch in range(options.epochs):
        mine = hvd.data.indices(len(train_x), epoch)  # 4: each rank its own samples
        loss = jnp.zeros(())
        for first in range(0, len(mine) - batch + 1, batch):
            chosen = np.asarray(mine[first : first + batch])
            params, state, loss = step(params, state, train_x[chosen], train_y[chosen])
        loss = hvd.average_metrics(loss)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d}   loss {float(loss):.3f}", flush=True)
    seconds = time.perf_counter() - start

    accuracy = hvd.average_metrics(accuracy_of(graph, params, test_x, test_y))
    if hvd.rank() == 0:
        rate = options.epochs * len(train_x) / seconds
        print(f"ranks {hvd.size()}   test accuracy {float(accuracy):.2%}   {rate:,.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
