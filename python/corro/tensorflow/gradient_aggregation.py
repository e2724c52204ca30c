"""Several backward passes for one reduction: gradients are added up here, and every k-th call reduces them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class LocalGradientAggregationHelper:
    """Adds gradients up in variables, in graphs and eagerly. `DistributedOptimizer(backward_passes_per_step=k)` uses it.

    `allreduce_func(gradients, variables)` is called for every k-th list of gradients; the other lists come back as
    the sums so far, and `apply_gradients` leaves the variables alone. Raises `ValueError` for k below 1.

    Example:
        >>> helper = hvd.LocalGradientAggregationHelper(2, lambda gradients, variables: gradients)
        >>> weight = tf.Variable(1.0)
        >>> for _ in range(2):
        ...     (total,) = helper.compute_gradients([tf.constant(1.5)], [weight])
        >>> float(total)
        3.0
    """

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Sequence[Any]],
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
        rank: int = 0,
        optimizer_type: str = _OPTIMIZER_TYPE_LEGACY,
        process_set: Any = None,
        scale_local_gradients: bool = True,
    ) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = backward_passes_per_step
        self._reduce = allreduce_func
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        # How many lists of gradients have been added since the last reduction.
        self.counter: Any = None
        self.sums: list[Any] = []
        # The turn whose gradients were computed last: whether it was the k-th.
        self._is_due: Any = None

    def _make_variables(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        if self.counter is not None:
            return
        with tf.init_scope():
            self.counter = _local_variable(0, tf.int32, "aggregation_counter")
            self.sums = [
                gradient
                if gradient is None
                else _local_variable(_zeros(gradient, variable), gradient.dtype, f"sum_{i}")
                for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
            ]

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self.sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(gradient)

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # noqa: A002
        """The reduced sums if this is the k-th call, else the sums so far."""
        gradients = [self._dense(gradient) for gradient in grads]
        if self.backward_passes_per_step == 1:
            return list(self._reduce(gradients, vars))
        self._make_variables(gradients, vars)
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        added = [self.sums[i].assign_add(gradients[i], read_value=False) for i in present]
        counted = self.counter.assign_add(1, read_value=False)
        with tf.control_dependencies([op for op in (*added, counted) if op is not None]):
            due = tf.equal(self.counter.read_value(), self.backward_passes_per_step)
            sums = [self.sums[i].read_value() for i in present]
        self._is_due = due

        def reduced() -> list[Any]:
            results = self._reduce(sums, [vars[i] for i in present])
            # Alone there is nothing to reduce. What was read of a variable may be its own memory, which is cleared below.
            results = [
                tf.raw_ops.DeepCopy(x=result) if result is total else result
                for result, total in zip(results, sums, strict=True)
            ]
            if self.average_aggregated_gradients:
                results = [result / self.backward_passes_per_step for result in results]
            with tf.control_dependencies(results):
                cleared = [self.sums[i].assign(tf.zeros_like(self.sums[i]), read_value=False) for i in present]
                cleared.append(self.counter.assign(0, read_value=False))
            with tf.control_dependencies([op for op in cleared if op is not None]):
                return [tf.identity(result) for result in results]

        # The sums are read again where nothing is reduced, so that both branches give tensors of their own.
        results = tf.cond(due, reduced, lambda: [tf.identity(total) for total in sums])
        everything: list[Any] = [None] * len(gradients)
        for i, result in zip(present, results, strict=True):
            everything[i] = result
        return everything

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies the gradients of the k-th call; otherwise only counts the step."""
        due, self._is_due = self._is_due, None
        if due is None:
            return apply_grads_closure()

        def apply() -> Any:
            done = apply_grads_closure()
            with tf.control_dependencies([done] if tf.is_tensor(done) or isinstance(done, tf.Operation) else []):
                return tf.constant(True)

        def count() -> Any:
            # As `apply_gradients(grads_and_vars, global_step)` of TensorFlow 1 has it.
            step = kwargs.get("global_step", args[1] if len(args) > 1 else None)
            step = step if step is not None else getattr(optimizer, "iterations", None)
            if step is None:
                return tf.constant(False)
            with tf.control_dependencies([step.assign_add(tf.ones_like(step))]):
                return tf.constant(False)

        return tf.cond(due, apply, count)


def _zeros(gradient: Any, variable: Any) -> Any:
    # A graph does not always know the shape of a gradient, above all if it was made of slices.
    known = tf.TensorShape(gradient.shape).is_fully_defined()
    return tf.zeros(gradient.shape if known else variable.shape, gradient.dtype)


def _local_variable(value: Any, dtype: Any, name: str) -> Any:
    """A variable that no optimizer trains and no checkpoint asks for."""
    if tf.executing_eagerly():
        return tf.Variable(value, trainable=False, dtype=dtype, name=name)
    collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES, tf.compat.v1.GraphKeys.GLOBAL_VARIABLES]
    # Not `get_variable`, which asks the scope that the program is in: in one that reuses variables there is none to reuse.
    return tf.compat.v1.Variable(
        tf.convert_to_tensor(value, dtype),
        trainable=False,
        use_resource=True,
        collections=collections,
        name=f"corro_{name}",
    )
