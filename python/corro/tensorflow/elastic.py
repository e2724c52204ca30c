"""Training that survives a change of the ranks: `hvd.elastic.run` and states of variables and Keras models."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from corro._errors import HorovodInternalError
from corro._front import basics
from corro._front.elastic import ObjectState, P, R, restart, run_fn
from corro._front.objects import broadcast_object
from corro.tensorflow.functions import broadcast_variables, tf_variable

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[P, R]) -> Callable[P, R]:
    """Decorates `func(state, ...)`: it is started again, from the last commit, when ranks are lost or added.

    The state goes first. Raises what `func` raises, but for lost ranks and changed hosts.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     while state.epoch < 3:
        ...         state.epoch += 1
        ...         state.commit()
        ...     return state.epoch
        >>> train(hvd.elastic.TensorFlowState([tf.Variable(0.0)], epoch=0))
        3
    """
    return run_fn(_translated(func), restart)


def _translated(func: Callable[P, R]) -> Callable[P, R]:
    """`func`, with the failures of collectives as what the other fronts raise."""

    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return func(*args, **kwargs)
        except tf.errors.OpError as error:
            # What a collective failed with comes through TensorFlow, as TensorFlow's.
            if is_lost_collective(error):
                raise HorovodInternalError(str(error)) from error
            raise

    return wrapper


# What the engine says when no collective can run any more, as long as the ranks are who they are.
_LOST = re.compile(
    r"Horovod has been shut down|has not been initialized; use hvd\.init\(\)|lost rank \d+ on |"
    r"the hosts of this job have changed|called off before all ranks had begun"
)


def is_lost_collective(error: tf.errors.OpError) -> bool:
    """Whether this is the failure of a collective that can be tried again with other ranks.

    Only the text tells. A node has the name that the program gave it, and compiled code fails with `InternalError`
    whatever the reason was.
    """
    return bool(_LOST.search(str(error))) or (isinstance(error, tf.errors.UnknownError) and "Horovod" in str(error))


class TensorFlowKerasState(ObjectState):
    """A Keras model, its optimizer (the model's, unless given) and plain values, as attributes.

    `commit()` saves them in memory and looks whether hosts have changed; `restore()` goes back to the last commit;
    `sync()` takes over what rank 0 has. Raises `ValueError` for a model that is not built.

    Example:
        >>> model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        >>> state = hvd.elastic.TensorFlowKerasState(model, tf.keras.optimizers.SGD(0.1), epoch=0)
        >>> state.epoch = 1
        >>> state.restore()
        >>> state.epoch
        0
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.model = model
        if not _is_built(model):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        _make_variables(self.optimizer, model.trainable_variables)
        self.backend = backend
        self._saved_values: list[Any] = []
        self._save_values()
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)

    def _variables(self) -> list[Any]:
        variables = list(self.model.variables)
        optimizer = self.optimizer
        if optimizer is not None:
            own = optimizer.variables
            known = {id(variable) for variable in variables}
            variables += [v for v in (own() if callable(own) else own) if id(v) not in known]
        return variables

    def _save_values(self) -> None:
        self._saved_values = [tf.identity(tf_variable(variable)) for variable in self._variables()]

    def save(self) -> None:
        self._save_values()
        super().save()

    def restore(self) -> None:
        # The optimizer may have made variables since; those begin anew.
        for variable, value in zip(self._variables(), self._saved_values, strict=False):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_variables(self._variables(), root_rank=0)
        self._save_values()
        super().sync()


def _make_variables(optimizer: Any, variables: Any) -> None:
    """All ranks must have the same variables to send, also those that have not trained yet."""
    # Optimizers of Keras 2's old kind make theirs by a function of their own.
    make = getattr(optimizer, "build", None) or getattr(optimizer, "_create_all_weights", None)
    if make is not None and not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        make(variables)


def _is_built(model: Any) -> bool:
    return bool(getattr(model, "built", False)) and bool(model.variables or not model.layers)


class TensorFlowState(ObjectState):
    """Variables, all global ones by default, and plain values, as attributes.

    `commit`, `restore` and `sync` are those of `TensorFlowKerasState`. `session` is for graphs of TensorFlow 1's style.

    Example:
        >>> weight = tf.Variable(1.0)
        >>> state = hvd.elastic.TensorFlowState([weight], epoch=0)
        >>> _ = weight.assign(2.0)
        >>> state.restore()
        >>> float(weight)
        1.0
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(variables) if variables is not None else tf.compat.v1.global_variables()
        self.session = session
        self._assign: Any = None
        self._saved_values = self._values()
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)

    def _values(self) -> list[Any]:
        if self.session is not None:
            return self.session.run(self.variables)
        return [variable.numpy() for variable in self.variables]

    def _load(self, values: list[Any]) -> None:
        for variable, value in zip(self.variables, values, strict=True):
            if self.session is not None:
                variable.load(value, self.session)
            else:
                variable.assign(value)

    def save(self) -> None:
        self._saved_values = self._values()
        super().save()

    def restore(self) -> None:
        self._load(self._saved_values)
        super().restore()

    def sync(self) -> None:
        if self.session is not None:
            # The ranks' graphs may differ by what was built after a restart: values travel as an object.
            self._load(broadcast_object(self._values(), 0, "tensorflow_state"))
        else:
            broadcast_variables(self.variables, root_rank=0)
        self._saved_values = self._values()
        super().sync()
