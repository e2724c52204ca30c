"""The operations as TensorFlow functions: opens the library that has Corro's engine register them."""

from __future__ import annotations

import os
import warnings
from typing import Any

import tensorflow as tf

import corro
from corro import _native

# Those that may run in any order, and beside each other: TensorFlow must not chain them as it chains stateful operations.
# `HorovodJoin` and `HorovodBarrier` stay in their place in the program.
_UNORDERED = (
    *("HorovodAllreduce", "HorovodGroupedAllreduce", "HorovodAllgather", "HorovodGroupedAllgather"),
    *("HorovodBroadcast", "HorovodAlltoall", "HorovodReducescatter", "HorovodGroupedReducescatter"),
    *("HorovodSize", "HorovodRank", "HorovodLocalSize", "HorovodLocalRank", "HorovodProcessSetIncluded"),
)


def _load() -> Any:
    path = os.path.join(os.path.dirname(os.path.abspath(corro.__file__)), "lib", "libcorro_tensorflow.so")
    module = tf.load_op_library(path)
    problem = _native.tensorflow_problem()
    if problem:
        raise ImportError(f"corro.tensorflow does not work with TensorFlow {tf.__version__}: {problem}.")
    _let_run_in_any_order()
    return module


def _let_run_in_any_order() -> None:
    try:
        from tensorflow.python.framework import auto_control_deps

        known = auto_control_deps.ASYNC_STATEFUL_OPS
        auto_control_deps.ASYNC_STATEFUL_OPS = type(known)([*known, *_UNORDERED])
    except (ImportError, AttributeError, TypeError) as error:
        # Right results, in the order of the program; but only if that is the same on all ranks.
        warnings.warn(
            f"this TensorFlow ({tf.__version__}) has no list of operations that run in any order ({error}): collectives of "
            f"a tf.function will run one after the other. Please report this.",
            RuntimeWarning,
            stacklevel=2,
        )


library = _load()
