#!/usr/bin/env python3
"""What communication adds to a step of Keras's `model.fit`: Corro beside TensorFlow's MultiWorkerMirroredStrategy (its ring
over gRPC) and beside none, in one run.

    python bench/keras_fit.py [--ranks 2]

Two models, one thread a rank. The ranks are this same script, started by `corro run`; the ways take turns in short rounds,
so that all see the same machine. The bar: Corro adds at most half of what the strategy adds.

Keras 3 cannot run `fit` under that strategy (it fails on its batches and on its losses), so all three ways run what `fit`
repeats: the model's `train_step` in a tf.function, under a strategy.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 60
SETTLE = 10  # steps of a round before its clock starts
WAYS = ("none", "corro", "strategy")


def models(keras):
    """Name: (a function that makes the model, shape of the input)."""
    layers = keras.layers

    def digits():
        return keras.Sequential(
            [
                layers.Input((8, 8, 1)),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.Conv2D(64, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(2),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(10),
            ]
        )

    def mlp():
        hidden = [layers.Dense(1024, activation="relu") for _ in range(2)]
        return keras.Sequential([layers.Input((784,)), *hidden, layers.Dense(10)])

    return {"digits CNN, 85 thousand parameters": (digits, (8, 8, 1)), "MLP, 1.9 million parameters": (mlp, (784,))}


def ranks_part(result: Path, batch: int, number_of_rounds: int) -> None:
    import corro
    import numpy as np

    corro.init()
    rank, size = corro.rank(), corro.size()
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": addresses(rank, size)}, "task": {"type": "worker", "index": rank}}
    )
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    # It wants to be there before anything else of TensorFlow is.
    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    mirrored = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)

    import keras

    import corro.keras as hvd

    def made(way, make):
        keras.utils.set_random_seed(0)
        optimizer = keras.optimizers.SGD(0.001)
        if way == "corro":
            optimizer = hvd.DistributedOptimizer(optimizer)
        model = make()
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    def stepper(way, make, x, y):
        """A function that takes one step."""
        strategy = mirrored if way == "strategy" else tf.distribute.get_strategy()
        with strategy.scope():
            model = made(way, make)
            model._symbolic_build(data_batch=(x, y))
        replicas = size if way == "strategy" else 1
        iterator = iter(strategy.experimental_distribute_dataset(for_all_workers(tf, x, y, replicas)))

        @tf.function
        def step(iterator):
            strategy.run(model.train_step, args=(next(iterator),))

        return model, lambda: step(iterator)

    times = {}
    for name, (make, shape) in models(keras).items():
        rng = np.random.default_rng(rank)
        x, y = rng.normal(size=(batch, *shape)).astype("float32"), rng.integers(0, 10, batch)
        by_way = {way: stepper(way, make, x, y) for way in WAYS}
        rounds = {way: [] for way in WAYS}
        for round_number in range(number_of_rounds + 1):
            for way in WAYS:
                _, step = by_way[way]
                for _ in range(SETTLE):
                    step()
                hvd.allreduce(0.0, name="together")
                start = time.perf_counter()
                for _ in range(STEPS):
                    step()
                if round_number:  # the first round compiles and warms up
                    per_step = (time.perf_counter() - start) / STEPS * 1e3
                    rounds[way].append(float(hvd.allreduce(per_step, name="per step")))
        times[name] = rounds
        corro_weights = by_way["corro"][0].get_weights()
        for ours, theirs in zip(corro_weights, by_way["strategy"][0].get_weights()):
            # Both train the same model on the same batches: the strategy adds up gradients of a loss divided by the ranks.
            np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-4)
    if rank == 0:
        result.write_text(json.dumps(times))
    hvd.allreduce(0.0, name="end")
    hvd.shutdown()
    # The strategy's server would wait, at a proper exit, for workers that have gone.
    sys.stdout.flush()
    os._exit(0)


def for_all_workers(tf, x, y, size: int):
    """The strategy deals a batch to the workers in equal parts; here every part is this worker's own."""
    import numpy as np

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    together = (np.concatenate([x] * size), np.concatenate([y] * size))
    return tf.data.Dataset.from_tensors(together).repeat().with_options(options)


def addresses(rank: int, size: int) -> list[str]:
    """A free port of each rank."""
    from corro._front.objects import allgather_object

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        return allgather_object(f"127.0.0.1:{port}", "ports")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.result:
        ranks_part(options.result, options.batch_size, options.rounds)
        return

    from corro._command import program

    result = Path(tempfile.gettempdir(), f"corro-keras-{os.getpid()}.json")
    given = ["--batch-size", str(options.batch_size), "--rounds", str(options.rounds)]
    script = [sys.executable, __file__, *given, "--result", str(result)]
    quiet = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "GRPC_VERBOSITY": "ERROR"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **quiet}
    subprocess.run([program(), "run", "-np", str(options.ranks), *script], env=environment, check=True, timeout=900)
    times = json.loads(result.read_text())
    result.unlink()

    print(f"\n{options.ranks} ranks, one thread each, batch {options.batch_size}; milliseconds a step, median of {options.rounds} rounds\n")
    print(f"{'model':36s} {'none':>7s} {'corro':>7s} {'strategy':>8s}   {'corro adds':>10s} {'strategy adds':>13s} {'share':>6s}")
    for name, rounds in times.items():
        none, corro, strategy = (statistics.median(rounds[way]) for way in WAYS)
        # Rounds next to each other saw the same machine: differences are taken within them.
        adds = {way: statistics.median(w - n for w, n in zip(rounds[way], rounds["none"])) for way in WAYS[1:]}
        share = adds["corro"] / adds["strategy"]
        verdict = "met" if share <= 0.5 else "MISSED"
        print(
            f"{name:36s} {none:7.2f} {corro:7.2f} {strategy:8.2f}   {adds['corro']:10.2f} {adds['strategy']:13.2f} {share:6.0%}"
            f"   at most half: {verdict}"
        )


if __name__ == "__main__":
    main()
