#!/usr/bin/env python3
"""What TensorFlow's graphs cost on top of the engine: scripts/python_env tf, then
`corro run -np 2 .venv-test-tf/bin/python bench/tensorflow_ops.py`.

| line | bar |
| --- | --- |
| an allreduce of 4 B in a tf.function, over an empty operation in its place | at most 60 us |
| an allreduce of 64 MiB in a tf.function, against the same on bare memory (`corro.numpy`, in place) in the same run | at most 1.1x |

The sides of a comparison take turns in many short rounds, in an order that is drawn anew for each (but is the same on all ranks), so that a
noisy machine is noisy for all of them and none always comes after the same one. Medians are shown, and the rounds that were disturbed least.
"""

from __future__ import annotations

import os
import random
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


class Times(list):
    """Seconds a call, one for each round."""

    def part(self, part: float) -> float:
        return sorted(self)[int(len(self) * part)]

    def micros(self) -> str:
        return f"{self.part(0.5) * 1e6:.1f} us (least {self.part(0) * 1e6:.1f})"


def compare(*runs, times: int, rounds: int) -> list[Times]:
    order = list(range(len(runs)))
    drawn = random.Random(7)
    found = [Times() for _ in runs]
    for run in runs:
        timed(run, times)
    for _ in range(rounds):
        drawn.shuffle(order)
        for i in order:
            found[i].append(timed(runs[i], times))
    return found


def over(first: Times, second: Times) -> str:
    """By how much the first is slower."""
    median, least = ((first.part(p) - second.part(p)) * 1e6 for p in (0.5, 0))
    return f"{median:+.1f} us (least {least:+.1f})"


def main() -> None:
    hvd.init()
    report = print if hvd.rank() == 0 else lambda *_: None

    x = tf.ones([1])
    reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="small"))
    empty = tf.function(lambda x: tf.identity(x))
    memory = np.ones(1, np.float32)

    def empty_and_bare() -> None:
        """The least that anything can cost that lets no rank go on before the other one has come."""
        empty(x)
        bare.allreduce_(memory, op=hvd.Sum, name="bare")

    small = compare(lambda: reduce(x), lambda: empty(x), empty_and_bare, times=60, rounds=100)
    in_graph, without, lockstep = small
    report(f"4 B in a tf.function: {in_graph.micros()}, empty {without.micros()}: {over(in_graph, without)}")
    report(f"an empty tf.function, then 4 B bare: {lockstep.micros()}: {over(lockstep, without)}")

    eager, without = compare(lambda: hvd.allreduce(x, op=hvd.Sum), lambda: tf.identity(x), times=200, rounds=50)
    report(f"4 B eagerly: {eager.micros()}, empty {without.micros()}: {over(eager, without)}")

    (alone,) = compare(lambda: bare.allreduce_(memory, op=hvd.Sum), times=500, rounds=9)
    report(f"4 B bare: {alone.micros()}")

    # Ten in a row in one graph: what a chain of collectives costs each.
    chain = tf.function(lambda x: [x := hvd.allreduce(x, op=hvd.Average, name=f"chain{i}") for i in range(10)][-1])
    (in_a_row,) = compare(lambda: chain(x), times=100, rounds=9)
    report(f"4 B, ten in a row: {in_a_row.part(0.5) * 1e5:.1f} us each")
    side = tf.function(lambda x: [hvd.allreduce(x + i, op=hvd.Average, name=f"side{i}") for i in range(100)])
    (beside,) = compare(lambda: side(x), times=20, rounds=9)
    report(f"4 B, a hundred beside each other: {beside.part(0.5) * 1e4:.1f} us each")

    big = tf.ones([64 * MIB // 4])
    big_reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Average, name="big"))
    forwarded = tf.function(lambda x: hvd.allreduce(x * 1.5, op=hvd.Average, name="forwarded"))
    multiply = tf.function(lambda x: x * 1.5)
    source, out = np.ones(64 * MIB // 4, np.float32), np.ones(64 * MIB // 4, np.float32)
    graph, plain, apart, in_place, product = (
        times.part(0.5) * 1e3
        for times in compare(
            lambda: big_reduce(big),
            lambda: bare.allreduce_(out, op=hvd.Average, name="plain"),
            lambda: bare.allreduce(source, op=hvd.Average, name="apart", out=out),
            lambda: forwarded(big),
            lambda: multiply(big),
            times=3,
            rounds=15,
        )
    )
    report(f"64 MiB in a tf.function: {graph:.2f} ms, bare {plain:.2f} ms: {graph / plain:.3f}x")
    report(
        f"bare, but as there into other memory: {apart:.2f} ms: {apart / plain:.3f}x; the function: {graph / apart:.3f}x that"
    )
    report(
        f"64 MiB of a temporary, less what makes it: {in_place - product:.2f} ms: {(in_place - product) / plain:.3f}x"
    )
    hvd.shutdown()


main()
