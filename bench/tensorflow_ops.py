#!/usr/bin/env python3
"""What TensorFlow's graphs cost on top of the engine: scripts/python_env tf, then
`corro run -np 2 .venv-test-tf/bin/python bench/tensorflow_ops.py`.

| line | bar |
| --- | --- |
| an allreduce of 4 B in a tf.function, over an empty operation in its place | at most 60 us |
| an allreduce of 64 MiB in a tf.function, against the same on bare memory (`corro.numpy`, in place) in the same run | at most 1.1x |

Both sides of a comparison take turns, round by round, so that a noisy machine is noisy for both; medians are shown.
"""

from __future__ import annotations

import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import corro.numpy as bare
import corro.tensorflow as hvd

MIB = 1 << 20


def timed(run, times: int) -> float:
    hvd.barrier()
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times


def compare(first, second, times: int, rounds: int) -> tuple[float, float]:
    """The medians of both, in seconds a call."""
    timed(first, times), timed(second, times)
    pairs = [(timed(first, times), timed(second, times)) for _ in range(rounds)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def main() -> None:
    hvd.init()
    report = print if hvd.rank() == 0 else lambda *_: None

    x = tf.ones([1])
    reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="small"))
    empty = tf.function(lambda x: tf.identity(x))
    with_op, without = compare(lambda: reduce(x), lambda: empty(x), 500, 9)
    report(
        f"4 B in a tf.function: {with_op * 1e6:.1f} us, empty {without * 1e6:.1f} us: +{(with_op - without) * 1e6:.1f} us"
    )

    eager, without = compare(lambda: hvd.allreduce(x, op=hvd.Sum), lambda: tf.identity(x), 500, 9)
    report(f"4 B eagerly: {eager * 1e6:.1f} us, empty {without * 1e6:.1f} us: +{(eager - without) * 1e6:.1f} us")

    memory = np.ones(1, np.float32)
    alone, _ = compare(lambda: bare.allreduce_(memory, op=hvd.Sum), lambda: None, 500, 9)
    report(f"4 B bare: {alone * 1e6:.1f} us")

    # Ten in a row in one graph: what a chain of collectives costs each.
    chain = tf.function(lambda x: [x := hvd.allreduce(x, op=hvd.Average, name=f"chain{i}") for i in range(10)][-1])
    in_a_row, _ = compare(lambda: chain(x), lambda: None, 100, 9)
    report(f"4 B, ten in a row: {in_a_row * 1e5:.1f} us each")
    side = tf.function(lambda x: [hvd.allreduce(x + i, op=hvd.Average, name=f"side{i}") for i in range(100)])
    beside, _ = compare(lambda: side(x), lambda: None, 20, 9)
    report(f"4 B, a hundred beside each other: {beside * 1e4:.1f} us each")

    big = tf.ones([64 * MIB // 4])
    big_reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Average, name="big"))
    forwarded = tf.function(lambda x: hvd.allreduce(x * 1.5, op=hvd.Average, name="forwarded"))
    multiply = tf.function(lambda x: x * 1.5)
    out = np.ones(64 * MIB // 4, np.float32)
    graph, plain = compare(lambda: big_reduce(big), lambda: bare.allreduce_(out, op=hvd.Average, name="plain"), 3, 7)
    report(f"64 MiB in a tf.function: {graph * 1e3:.2f} ms, bare {plain * 1e3:.2f} ms: {graph / plain:.3f}x")
    in_place, product = compare(lambda: forwarded(big), lambda: multiply(big), 3, 7)
    report(
        f"64 MiB of a temporary, less what makes it: {(in_place - product) * 1e3:.2f} ms: {(in_place - product) / plain:.3f}x"
    )
    hvd.shutdown()


main()
