"""Bringing all ranks to the same state: variables, any object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import tensorflow as tf

from corro._front import objects
from corro._front.process_sets import ProcessSet, global_process_set
from corro.tensorflow.mpi_ops import AnySet, broadcast, broadcast_
from corro.tensorflow.util import as_it_is, is_keras_variable

T = TypeVar("T")

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def tf_variable(variable: Any) -> Any:
    """TensorFlow's own variable, also of one of Keras 3."""
    return variable.value if is_keras_variable(variable) else variable


@as_it_is
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: AnySet = global_process_set, inplace: bool = False
) -> Any:
    """Gives the variables the values of `root_rank`: at once in eager execution, else by the operation it returns.

    `inplace` uses `broadcast_`.

    Example:
        >>> variable = tf.Variable([float(hvd.rank())])
        >>> hvd.broadcast_variables([variable], root_rank=1)
        >>> variable.numpy()
        array([1.], dtype=float32)
    """
    variables = list(variables)
    if inplace:
        values = broadcast_([tf_variable(variable) for variable in variables], root_rank, process_set=process_set)
        return None if tf.executing_eagerly() else tf.group(*values)
    assigned = [
        variable.assign(broadcast(tf_variable(variable), root_rank, process_set=process_set)) for variable in variables
    ]
    return None if tf.executing_eagerly() else tf.group(*[op for op in assigned if op is not None])


@as_it_is
def broadcast_global_variables(root_rank: int) -> Any:
    """In a graph of TensorFlow 1's style: the operation that gives all global variables the values of `root_rank`.

    Raises `RuntimeError` in eager execution, which has no list of all variables.

    Example:
        >>> with tf.Graph().as_default():
        ...     variable = tf.compat.v1.get_variable("v", initializer=float(hvd.rank()))
        ...     everywhere = hvd.broadcast_global_variables(root_rank=1)
        ...     with tf.compat.v1.Session() as session:
        ...         session.run(tf.compat.v1.global_variables_initializer())
        ...         session.run(everywhere)
        ...         print(session.run(variable))
        1.0
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Use hvd.broadcast_variables"
            "(<model/optimizer variables>) instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """For sessions of TensorFlow 1's style: gives all global variables the values of `root_rank` when the session begins.

    Example:
        >>> with tf.Graph().as_default():
        ...     variable = tf.compat.v1.get_variable("v", initializer=float(hvd.rank()))
        ...     hook = hvd.BroadcastGlobalVariablesHook(root_rank=1)
        ...     with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
        ...         print(session.run(variable))
        1.0
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None
        self.device = device

    def begin(self) -> None:
        if self.bcast_op is None or self.bcast_op.graph != tf.compat.v1.get_default_graph():
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)


# Objects need no graph and no session: they travel beside TensorFlow, over the same engine.
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of `root_rank`, on every rank. Any that cloudpickle can pickle. `session` is not needed.

    Example:
        >>> hvd.broadcast_object({"epoch": 3} if hvd.rank() == 0 else None, root_rank=0)
        {'epoch': 3}
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function that broadcasts its argument: `broadcast_object` with all else given.

    Example:
        >>> from_rank_0 = hvd.broadcast_object_fn(root_rank=0)
        >>> from_rank_0(hvd.rank())
        0
    """
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: T, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[T]:
    """The objects of all ranks, in rank order. Any that cloudpickle can pickle. `session` is not needed.

    Example:
        >>> hvd.allgather_object(f"I am {hvd.rank()}")
        ['I am 0', 'I am 1']
    """
    return objects.allgather_object(obj, name, process_set)
