"""The digits of `digits.py`, trained so that ranks may come and go: what was committed is never lost.

    corro run -np 2 python examples/keras/elastic_digits.py

Started without elastic options it is an ordinary training.
"""

from __future__ import annotations

import argparse

import keras
from digits import digits, my_part, network

import corro.keras as hvd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=1e-3, help="for one rank")
    options = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(1 + hvd.rank())
    train_x, test_x, train_y, test_y = digits()
    model = network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(options.lr * hvd.size()))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    # 1: what must be equal on all ranks, whenever they are others
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    def ranks_changed() -> None:
        optimizer.learning_rate = options.lr * hvd.size()

    state.register_reset_callbacks([ranks_changed])

    @hvd.elastic.run  # 2: starts again from the last commit
    def train(state: hvd.elastic.KerasState) -> None:
        model.fit(
            my_part(train_x),
            my_part(train_y),
            batch_size=options.batch_size,
            epochs=options.epochs - state.epoch,
            verbose=2 if hvd.rank() == 0 else 0,
            callbacks=[
                hvd.callbacks.MetricAverageCallback(),
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.CommitStateCallback(state, batches_per_commit=5),  # 3: what is lost at most
            ],
        )

    train(state)
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    accuracy = float(hvd.allreduce(accuracy, name="accuracy"))
    if hvd.rank() == 0:
        print(f"{keras.backend.backend()}   ranks {hvd.size()}   test accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
