"""Gradient tapes whose gradients are those of all ranks together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from corro._front.arguments import Average
from corro._front.process_sets import ProcessSet, global_process_set
from corro.tensorflow._reduction import Reduction, checked_groups
from corro.tensorflow.compression import Compression
from corro.tensorflow.util import as_it_is

if TYPE_CHECKING:
    from corro.tensorflow._types import DistributedTape


class _Distributed:
    """What is added to a tape. It shares all state with the tape it was made from."""

    _corro_reduction: Reduction

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable stays this rank's own."""
        self._corro_reduction.register_local(source)

    @as_it_is
    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> list[Any]:
        """The reduced gradients, as a list in the order of the sources."""
        gradients = super().gradient(target, sources, output_gradients)  # type: ignore[misc]
        return self._corro_reduction(_flat(gradients), _flat(sources), use_generic_names)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """(source, gradient) of the local sources, and of those that are reduced."""
        gradients = self.gradient(target, sources, output_gradients, use_generic_names)
        local: list[tuple[Any, Any]] = []
        reduced: list[tuple[Any, Any]] = []
        for source, gradient in zip(_flat(sources), gradients, strict=True):
            (local if self._corro_reduction.is_local(source) else reduced).append((source, gradient))
        return local, reduced


def _flat(structure: Any) -> list[Any]:
    if isinstance(structure, (list, tuple)):
        return [leaf for item in structure for leaf in _flat(item)] if structure else []
    if isinstance(structure, dict):
        return [leaf for key in sorted(structure) for leaf in _flat(structure[key])]
    return [structure]


def _distributed(tape: Any, reduction: Reduction) -> Any:
    kind: Any = type(tape.__class__.__name__, (_Distributed, tape.__class__), {})
    wrapped = kind.__new__(kind)
    # One set of attributes for both: the tape may be wrapped while it records, and is ended by its own `with`.
    wrapped.__dict__ = tape.__dict__
    wrapped._corro_reduction = reduction
    return wrapped


def DistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """A tape that does what `gradtape` does, but whose `gradient` reduces over all ranks.

    `op`, `groups`, `compression`, `sparse_as_dense` and `gradient_predivide_factor` are those of `DistributedOptimizer`.
    `tape.register_local_source(variable)` leaves the gradient of a variable to each rank.

    Example:
        >>> weight = tf.Variable(1.0)
        >>> with tf.GradientTape() as tape:
        ...     loss = weight * hvd.rank()
        >>> tape = hvd.DistributedGradientTape(tape)
        >>> float(tape.gradient(loss, [weight])[0])
        0.5
    """
    groups = checked_groups(groups, num_groups)
    options = (device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor)
    return _distributed(gradtape, Reduction(*options, groups, process_set, scale_local_gradients))


def layers_of(local_layers: Any) -> list[Any]:
    """What `local_layers` may be: a layer, or a list of them."""
    layers = [] if local_layers is None else local_layers if isinstance(local_layers, list) else [local_layers]
    if not all(isinstance(layer, tf.keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return layers


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """A `DistributedGradientTape` that leaves the weights of `local_layers` to each rank.

    Example:
        >>> layer = tf.keras.layers.Dense(1, use_bias=False)
        >>> with tf.GradientTape() as tape:
        ...     loss = layer(tf.fill([1, 1], float(hvd.rank())))
        >>> tape = hvd.PartialDistributedGradientTape(tape, local_layers=[layer])
        >>> gradients = tape.gradient(loss, layer.trainable_weights)
    """
    layers = layers_of(local_layers)
    tape = DistributedGradientTape(
        *(gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor),
        *(num_groups, groups, process_set, scale_local_gradients),
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
