"""Trains a small CNN on handwritten digits, on ranks that may be lost or added at any time.

    corro run -np 4 --min-np 2 python examples/jax/elastic_digits.py

Kill a rank (`kill -9`) while it trains: the others go on at once, with the step that they have compiled. The steps that
make it elastic are marked.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits import Net, accuracy_of, digits, loss_of
from flax import nnx

import corro.jax as hvd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument(
        "--batch-size", type=int, default=16, help="of each rank: it is a constant of the compiled step"
    )
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()

    hvd.init()
    train_x, train_y, test_x, test_y = digits()
    graph, params = nnx.split(Net(nnx.Rngs(0)))
    optimizer = hvd.DistributedOptimizer(optax.adam(options.lr))

    @jax.jit
    def step(params: Any, opt_state: Any, images: jax.Array, labels: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(lambda p: loss_of(graph, p, images, labels))(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    # 1: what must survive. It is sent to all ranks whenever they change, so nothing else needs to be broadcast.
    state = hvd.elastic.JaxState(params=params, opt_state=optimizer.init(params), epoch=0, done=0)

    # 2: what is begun again whenever the ranks change.
    @hvd.elastic.run
    def train(state: hvd.elastic.JaxState) -> None:
        while state.epoch < options.epochs:
            loss = jnp.zeros(())
            # 3: what is left of the epoch is dealt to those who are there.
            left = hvd.data.indices(len(train_x), state.epoch, skip=state.done)
            for first in range(0, len(left) - options.batch_size + 1, options.batch_size):
                chosen = np.asarray(left[first : first + options.batch_size])
                state.params, state.opt_state, loss = step(
                    state.params, state.opt_state, train_x[chosen], train_y[chosen]
                )
                state.done += options.batch_size * hvd.size()
                if first // options.batch_size % 5 == 4:
                    state.commit()  # 4: from here we go on if a rank is lost; and here new ranks come in
            state.epoch, state.done = state.epoch + 1, 0
            state.commit()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch}   ranks {hvd.size()}   loss {float(loss):.3f}", flush=True)

    train(state)
    if hvd.rank() == 0:
        accuracy = accuracy_of(graph, state.params, test_x, test_y)
        print(f"ranks {hvd.size()}   test accuracy {float(accuracy):.2%}", flush=True)


if __name__ == "__main__":
    main()
