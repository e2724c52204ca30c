"""Fits a small network of Gluon to a wave, on as many ranks as it is started with.

corro run -np 2 python examples/mxnet/regression.py
"""

from __future__ import annotations

import argparse

import mxnet as mx
import numpy as np

import corro.mxnet as hvd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    options = parser.parse_args()

    hvd.init()  # 1: join the job
    rng = np.random.default_rng(hvd.rank())  # 2: each rank its own samples
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(32, activation="tanh", in_units=1), mx.gluon.nn.Dense(1, in_units=32))
    net.initialize(mx.init.Xavier())
    params = net.collect_params()
    hvd.broadcast_parameters(params, root_rank=0)  # 3: start from the same weights
    trainer = hvd.DistributedTrainer(params, "adam", {"learning_rate": 0.01})  # 4: gradients are averaged

    loss = mx.nd.zeros((1,))
    for _ in range(options.epochs * 50):
        x = mx.nd.array(rng.uniform(-3, 3, size=(options.batch_size, 1)))
        with mx.autograd.record():
            loss = ((net(x) - mx.nd.sin(x)) ** 2).mean()
        loss.backward()
        trainer.step(1)

    error = hvd.allreduce(loss, name="error").asscalar()  # 5: over all ranks
    if hvd.rank() == 0:
        print(f"ranks {hvd.size()}   error {error:.4f}", flush=True)


if __name__ == "__main__":
    main()
