"""`DistributedOptimizer`: any optimizer, with the gradients of all ranks."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from corro._front import checks
from corro._front.arguments import Adasum, Average, Sum
from corro._front.process_sets import ProcessSet, global_process_set
from corro.tensorflow._dense import allreduce
from corro.tensorflow._reduction import Reduction, check_predivide, checked_groups
from corro.tensorflow.compression import Compression
from corro.tensorflow.gradient_aggregation import LocalGradientAggregationHelper

_Legacy = tf.compat.v1.train.Optimizer


class _DistributedOptimizer(_Legacy):  # type: ignore[valid-type] # TensorFlow has no types for it
    """Wraps an optimizer of TensorFlow 1: reduces what `compute_gradients` gives."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        reduction: Reduction,
        backward_passes_per_step: int,
        average_aggregated_gradients: bool,
    ) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction
        reduction.numbers = self._numbers
        self._agg_helper: LocalGradientAggregationHelper | None = None
        if backward_passes_per_step > 1:
            if tf.executing_eagerly():
                raise ValueError(
                    "backward_passes_per_step > 1 is not supported yet for optimizer instances with TF 1 style in "
                    "eager execution. Use a Keras optimizer."
                )
            self._agg_helper = LocalGradientAggregationHelper(
                backward_passes_per_step, reduction, reduction.sparse_as_dense, average_aggregated_gradients
            )

    def _numbers(self) -> dict[tuple[str, str], Any]:
        """The learning rate, which the optimizers of TensorFlow 1 keep by two names. They count no steps."""
        rate = getattr(self._optimizer, "_learning_rate", getattr(self._optimizer, "_lr", None))
        rate = rate() if callable(rate) else rate
        return {} if rate is None else {(checks.RATE, ""): rate}

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable stays this rank's own."""
        self._reduction.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The gradients of all ranks together, with their variables."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if self._agg_helper is not None:
            reduced = self._agg_helper.compute_gradients(gradients, variables)
        else:
            reduced = self._reduction(gradients, variables)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        if self._agg_helper is not None:
            return self._agg_helper.apply_gradients(
                lambda: self._optimizer.apply_gradients(*args, **kwargs), self._optimizer, *args, **kwargs
            )
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


class _DistributedAdasumOptimizer(_Legacy):  # type: ignore[valid-type] # TensorFlow has no types for it
    """Every rank takes its own step; what the steps changed is combined by Adasum."""

    def __init__(
        self, optimizer: Any, name: str | None, use_locking: bool, options: dict[str, Any], backward_passes: int
    ) -> None:
        super().__init__(name=name or f"DistributedDelta{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._options = options
        self._backward_passes = backward_passes
        self._starts: dict[Any, Any] = {}
        self._counter: Any = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """The local step, and every `backward_passes_per_step`-th time the combination."""
        variables = [variable for gradient, variable in grads_and_vars if gradient is not None]
        self._make_variables(variables)

        def remember() -> Any:
            with tf.control_dependencies([self._starts[v.ref()].assign(v.read_value()) for v in variables]):
                return tf.constant(True)

        turn = self._counter.assign_add(1)
        begun = tf.cond(tf.equal((turn - 1) % self._backward_passes, 0), remember, lambda: tf.constant(False))
        with tf.control_dependencies([begun]):
            stepped = self._optimizer.apply_gradients(grads_and_vars, global_step)

        def combine() -> Any:
            done = []
            for variable in variables:
                start = self._starts[variable.ref()].read_value()
                delta = allreduce(variable.read_value() - start, op=Adasum, **self._options)
                done.append(variable.assign(start + delta))
            with tf.control_dependencies(done):
                return tf.constant(True)

        with tf.control_dependencies([stepped] if stepped is not None else []):
            return tf.cond(tf.equal(turn % self._backward_passes, 0), combine, lambda: tf.constant(False))

    def _make_variables(self, variables: list[Any]) -> None:
        """Where the variables' values are kept from before the steps that are to be combined."""
        if self._counter is not None:
            return
        options = {"trainable": False, "use_resource": True}
        with tf.init_scope():
            self._counter = tf.compat.v1.Variable(0, name="adasum_counter", **options)
            self._starts = {
                variable.ref(): tf.compat.v1.Variable(
                    tf.zeros(variable.shape, variable.dtype.base_dtype), name="adasum_start", **options
                )
                for variable in variables
            }

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that reduces the gradients over all ranks before it applies them.

    `optimizer` is one of `tf.compat.v1.train` or one of Keras; for another, `ValueError`. `op` is Average, Sum or
    Adasum (not with Keras); `backward_passes_per_step` adds up as many passes before it reduces, and
    `average_aggregated_gradients` divides by their number; `groups` reduces gradients together; `sparse_as_dense` makes
    sparse ones dense.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
        >>> weight = tf.Variable([1.0])
        >>> _ = optimizer.apply_gradients([(tf.constant([2.0 * hvd.rank()]), weight)])
        >>> weight.numpy()
        array([0.9], dtype=float32)
    """
    check_predivide(gradient_predivide_factor, op)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    groups = checked_groups(groups, num_groups)

    if isinstance(optimizer, _Legacy):
        if op == Adasum:
            if process_set is not global_process_set:
                raise NotImplementedError("Adasum does not support non-global process sets yet.")
            options = {"device_dense": device_dense, "device_sparse": device_sparse, "compression": compression}
            return _DistributedAdasumOptimizer(optimizer, name, use_locking, options, backward_passes_per_step)
        reduction = Reduction(
            *(device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor),
            *(groups, process_set, scale_local_gradients),
        )
        return _DistributedOptimizer(
            *(optimizer, name, use_locking, reduction, backward_passes_per_step, average_aggregated_gradients)
        )

    if _is_keras(optimizer):
        if op == Adasum:
            raise ValueError("op == Adasum is not supported yet with Keras")
        import corro.tensorflow.keras as hvd_keras

        _warn_of_ignored(op, groups, use_locking)
        return hvd_keras.DistributedOptimizer(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    raise ValueError(
        "Provided optimizer doesn't inherit from either legacy TensorFlow or Keras optimizer: "
        f"it is a {type(optimizer).__name__}."
    )


_ignored: set[str] = set()


def _warn_of_ignored(op: int, groups: Any, use_locking: bool) -> None:
    """Says, once for each, what has no effect with an optimizer of Keras: as in Horovod, whose scripts give them anyway."""
    given = {
        f"op={'Sum' if op == Sum else op}": op != Average,
        "groups": groups is not None,
        "use_locking": use_locking,
    }
    for argument, is_given in given.items():
        if is_given and argument not in _ignored:
            _ignored.add(argument)
            warnings.warn(
                f"DistributedOptimizer of corro.tensorflow ignores {argument} for an optimizer of Keras, as Horovod does: "
                f"gradients are averaged, in one group. Use corro.tensorflow.keras.DistributedOptimizer, which "
                f"{'has no use_locking' if argument == 'use_locking' else 'takes it'}.",
                stacklevel=3,
            )


def _is_keras(optimizer: Any) -> bool:
    # Keras 3 and tf_keras are different packages; either may be installed.
    bases = ("Optimizer", "BaseOptimizer", "OptimizerV2")
    return any(
        kind.__module__.split(".")[0] in ("keras", "tf_keras") and kind.__name__ in bases
        for kind in type(optimizer).__mro__
    )
