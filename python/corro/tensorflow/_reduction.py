"""How a list of gradients is reduced: the rules that the tapes and the optimizers share."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from corro._front.arguments import Adasum, Average
from corro._front.basics import elastic_enabled, rocm_built
from corro._front.engine_compression import Settings, name_apart, of_spec, settings_of
from corro._front.process_sets import ProcessSet, global_process_set
from corro.common.util import split_list
from corro.tensorflow._dense import allreduce, grouped_allreduce
from corro.tensorflow._watching import Numbers, watch_over
from corro.tensorflow.compression import Compression
from corro.tensorflow.mpi_ops import size_op
from corro.tensorflow.util import as_it_is


def checked_groups(groups: Any, num_groups: int) -> Any:
    """What `groups` and its predecessor `num_groups` ask for."""
    if num_groups:
        warnings.warn("num_groups is deprecated: say groups=<number>.", DeprecationWarning, stacklevel=3)
        groups = groups if groups is not None else num_groups
    if groups is None:
        return None
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups > 0:
            return groups
    elif isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups):
        return [list(group) for group in groups]
    raise ValueError("groups should be a positive integer or a list of lists of variables.")


def check_predivide(factor: float, op: int) -> None:
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if factor != 1.0 and rocm_built():
        raise ValueError("gradient_predivide_factor not supported yet with ROCm")


def key_of(variable: Any) -> Any:
    """A variable as a key of a dictionary."""
    return variable.ref() if hasattr(variable, "ref") else id(variable)


def _name_of(variable: Any) -> Any:
    """What tells a variable from others: Keras 3 calls all kernels "kernel", and has the layer only in their paths."""
    return getattr(variable, "path", None) or getattr(variable, "name", None)


class Reduction:
    """Reduces lists of gradients, all in the same manner."""

    def __init__(
        self,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        check_predivide(gradient_predivide_factor, op)
        self.options: dict[str, Any] = {
            "device_dense": device_dense,
            "device_sparse": device_sparse,
            "compression": compression,
            "op": op,
            "process_set": process_set,
        }
        if gradient_predivide_factor != 1.0:
            self.options["prescale_factor"] = 1.0 / gradient_predivide_factor
            self.options["postscale_factor"] = gradient_predivide_factor
        # How the engine compresses each, if it does.
        self.settings = settings_of(compression, Compression.none)
        self.sparse_as_dense = sparse_as_dense
        self.groups = groups
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        # What the optimizer tells of itself, for the ranks to compare.
        self.numbers: Numbers = dict
        # What belongs to this rank alone: not reduced.
        self.local: set[Any] = set()

    def register_local(self, variable: Any) -> None:
        self.local.add(key_of(variable))

    def is_local(self, variable: Any) -> bool:
        return key_of(variable) in self.local

    def needed(self) -> bool:
        """Whether there is anybody to reduce with."""
        if not self.process_set.included():
            return False
        return elastic_enabled() or len(self.process_set.ranks or ()) > 1

    @as_it_is
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any], generic_names: bool = False) -> list[Any]:
        """The reduced gradients, in order; None stays None, and gradients of local variables stay this rank's."""
        results = list(gradients)
        if not self.needed():
            return results
        mine: list[int] = []
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if self.is_local(variable):
                results[i] = self._scaled(gradient)
            else:
                mine.append(i)
                if self.sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
                    results[i] = tf.convert_to_tensor(gradient)
        for group in self._groups(mine, variables, results):
            if self.settings is None:
                self._reduce(results, group, self.options, "grad" if generic_names else None)
            else:
                self._reduce_compressed(results, group, variables, self.settings)
        if mine and self.options["op"] != Adasum:
            shared = [variables[i] for i in mine if hasattr(variables[i], "assign")]
            if shared:
                watch_over(shared, self.process_set).look([results[i] for i in mine], shared, self.numbers)
        return results

    def _scaled(self, gradient: Any) -> Any:
        """The gradient of a local variable, as if it had been averaged with the zeros of the others."""
        if not self.scale_local_gradients:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / tf.cast(size_op(self.process_set), gradient.dtype)
            return tf.IndexedSlices(values, gradient.indices, dense_shape=gradient.dense_shape)
        return gradient / tf.cast(size_op(self.process_set), gradient.dtype)

    def _groups(self, mine: list[int], variables: Sequence[Any], gradients: Sequence[Any]) -> list[list[int]]:
        """Which gradients complete together."""
        if isinstance(self.groups, int):
            return [group for group in split_list(mine, min(self.groups, max(len(mine), 1))) if group]
        if self.groups:
            # By name: Keras may have made other variables of the same name since.
            group_of = {_name_of(v): number for number, group in enumerate(self.groups) for v in group}
            groups: dict[Any, list[int]] = {}
            for i in mine:
                groups.setdefault(group_of.get(_name_of(variables[i]), f"alone {i}"), []).append(i)
            return list(groups.values())
        if not tf.executing_eagerly() or self.options["op"] == Adasum:
            return [[i] for i in mine]
        # Eagerly each operation is waited for, so all gradients go in one: the engine then moves them together.
        slices = [i for i in mine if isinstance(gradients[i], tf.IndexedSlices)]
        dense = [i for i in mine if not isinstance(gradients[i], tf.IndexedSlices)]
        return [[i] for i in slices] + ([dense] if dense else [])

    def _reduce_compressed(
        self, gradients: list[Any], group: list[int], variables: Sequence[Any], settings: Settings
    ) -> None:
        """In as many parts as there are ways to compress. What is kept of a gradient is kept by its name: it has the same
        in each step, and other models have others.
        """
        base = name_apart("gradients", (variable.shape for variable in variables))
        parts: dict[str | None, list[int]] = {}
        for i in group:
            gradient = gradients[i]
            is_dense_float = gradient.dtype.is_floating and not isinstance(gradient, tf.IndexedSlices)
            nbytes = (gradient.shape.num_elements() or 0) * gradient.dtype.size if is_dense_float else 0
            spec = settings(str(_name_of(variables[i])), nbytes) if is_dense_float else None
            parts.setdefault(spec, []).append(i)
        for spec, part in parts.items():
            how = Compression.none if spec is None else of_spec(spec)
            self._reduce(gradients, part, {**self.options, "compression": how}, base)

    def _reduce(self, gradients: list[Any], group: list[int], options: dict[str, Any], base: str | None) -> None:
        """By names that begin with `base`, if it is given."""
        named: dict[str, Any] = {}
        if base is not None:
            named = {"name": f"{base}_{group[0]}", "ignore_name_scope": True}
        if len(group) == 1:
            i = group[0]
            gradients[i] = allreduce(gradients[i], **options, **named)
            return
        # A group is of one dtype; what has another one is a group of its own.
        by_dtype: dict[Any, list[int]] = {}
        for i in group:
            by_dtype.setdefault(gradients[i].dtype, []).append(i)
        for indices in by_dtype.values():
            if base is not None:
                named["name"] = f"{base}_{indices[0]}"
            reduced = grouped_allreduce([gradients[i] for i in indices], **options, **named)
            for i, gradient in zip(indices, reduced, strict=True):
                gradients[i] = gradient
