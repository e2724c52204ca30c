"""Small helpers of the TensorFlow front."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])


def as_it_is(function: Function) -> Function:
    """Marks what users call in a `tf.function`: there is nothing in it for AutoGraph to convert, which takes long and loses
    the types of exceptions.
    """
    return tf.autograph.experimental.do_not_convert(function)


class InvalidArgument(tf.errors.InvalidArgumentError, ValueError, TypeError):
    """An argument that was refused before there was a node.

    It is TensorFlow's class and Python's: which of them a program expects depends on whether TensorFlow's Python, its graph
    or a kernel was the first to notice.
    """


def _executing_eagerly() -> bool:
    return tf.executing_eagerly()


def is_keras_variable(value: Any) -> bool:
    """Whether this is a variable of Keras 3, which holds TensorFlow's."""
    return not isinstance(value, tf.Variable) and hasattr(value, "assign") and hasattr(value, "value")


def on_device(name: str) -> AbstractContextManager[Any]:
    """`tf.device`, where "" leaves everything as it is."""
    return tf.device(name) if name else nullcontext()


def vars_to_refs(variables: Iterable[Any]) -> tuple[Any, ...]:
    """Variables as keys of dictionaries, by `tf.Variable.ref`; anything else stays as it is.

    Example:
        >>> weight = tf.Variable(1.0)
        >>> local_gradient_of = {hvd.vars_to_refs([weight]): 0.5}
    """
    return tuple(
        vars_to_refs(v) if isinstance(v, (list, tuple)) else v.ref() if hasattr(v, "ref") else v for v in variables
    )


def refs_to_vars(references: Iterable[Any]) -> list[Any]:
    """The opposite of `vars_to_refs`.

    Example:
        >>> weight = tf.Variable(1.0)
        >>> hvd.refs_to_vars(hvd.vars_to_refs([weight]))[0] is weight
        True
    """
    return [
        refs_to_vars(r) if isinstance(r, (list, tuple)) else r.deref() if hasattr(r, "deref") else r for r in references
    ]
