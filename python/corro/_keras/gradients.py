"""Which gradients of a step are reduced, how, and in which groups. Knows no backend: that is an argument."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from corro._front import basics
from corro._front.arguments import Average, Sum, set_size
from corro._front.compression import NoneCompressor
from corro._front.engine_compression import name_apart, of_spec, settings_of
from corro._front.process_sets import ProcessSet
from corro.common.util import split_list


def common_name(variable: Any, position: int) -> str:
    """The name by which ranks find each other's gradient of the variable at this position.

    Not by the variable's path, which tells what else a rank has made before: a second `dense` is `dense_1`, and a model
    that one rank has loaded and the others have built has `dense/kernel` where they have `sequential/dense/kernel`.
    """
    own_name = variable.name.rsplit("/", 1)[-1].split(":")[0]
    return f"{own_name.rstrip('_0123456789')}.{position}"


def same_variable(variable: Any) -> int:
    """A number that a Keras variable and the backend's variable inside it have in common."""
    inner = getattr(variable, "_value", None)
    # A tf.Variable lives as long as the Keras variable around it; JAX makes a new array for every value.
    return id(inner if hasattr(inner, "assign") else variable)


def checked_groups(groups: Any, num_groups: int) -> Any:
    """What `groups` and its predecessor ask for: None, a number of groups, or lists of variables."""
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups.", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        return groups
    lists = isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups)
    if not lists or any(not hasattr(variable, "shape") for group in groups for variable in group):
        raise ValueError("groups must be a positive integer or a list of lists of variables.")
    members = [same_variable(variable) for group in groups for variable in group]
    if len(set(members)) != len(members):
        raise ValueError("a variable is in more than one group: put it into one only.")
    return groups


def is_distributed(optimizer: Any) -> bool:
    return "_reducer" in getattr(optimizer, "__dict__", {})


def distributed_part(optimizer: Any) -> Any:
    """The distributed optimizer in `optimizer`, which Keras may have wrapped to scale losses; None if there is none."""
    for candidate in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if candidate is not None and is_distributed(candidate):
            return candidate
    return None


class Reducer:
    """What the arguments of `DistributedOptimizer` say, ready to be used in every step."""

    def __init__(
        self,
        backend: Any,
        name: str,
        op: int,
        compression: Any,
        sparse_as_dense: bool,
        gradient_predivide_factor: float,
        groups: Any,
        process_set: ProcessSet,
        scale_local_gradients: bool,
    ) -> None:
        if op not in (Average, Sum):
            raise ValueError("the Keras DistributedOptimizer supports op=hvd.Average and op=hvd.Sum.")
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor is only supported with op=hvd.Average.")
        self.backend = backend
        self.name = name
        self.process_set = process_set
        self._numbers = (op, 1.0 / gradient_predivide_factor, gradient_predivide_factor)
        self._compression = compression
        # How the engine compresses each, if it does.
        self._settings = settings_of(compression, NoneCompressor)
        self.sparse_as_dense = sparse_as_dense
        self._groups = groups
        self._scale_local = scale_local_gradients
        self._local_variables: list[Any] = []
        self._local_layers: list[Any] = []
        self._watch: Any = None

    def add_local_variable(self, variable: Any) -> None:
        """This variable is trained by each rank for itself."""
        self._local_variables.append(variable)

    def add_local_layers(self, layers: Iterable[Any]) -> None:
        # A layer that is not built yet has no variables yet: they are asked for in each step.
        self._local_layers.extend(layers)

    def local(self) -> set[int]:
        """Which variables each rank trains for itself."""
        in_layers = [variable for layer in self._local_layers for variable in layer.trainable_weights]
        return {same_variable(variable) for variable in (*self._local_variables, *in_layers)}

    @property
    def alone(self) -> bool:
        """Whether there is nobody to reduce with. A world of one that may grow is not alone."""
        if not self.process_set.included():
            return True
        return set_size(self.process_set) == 1 and not basics.elastic_enabled()

    def look(self, reduced: Sequence[Any], variables: Sequence[Any], numbers: Callable[[], Any]) -> None:
        """Has the ranks compare what they train, now and then, after a reduction."""
        if self.alone:
            return
        if self._watch is None:
            self._watch = self.backend.watch(self.process_set, self.name)
        local = self.local()
        pairs = [
            (gradient, variable)
            for gradient, variable in zip(reduced, variables, strict=True)
            if gradient is not None and same_variable(variable) not in local
        ]
        if pairs:
            self._watch.look(*zip(*pairs, strict=True), numbers)

    def prepare_for_compiled_steps(self) -> None:
        self._reduce = self.backend.uncompiled(self._reduce)  # type: ignore[method-assign]

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of the ranks together; those that are None stay so."""
        return self._reduce(gradients, variables)

    def _reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        gradients = list(gradients)
        basics.rank()  # raises when not initialised
        if self.alone:
            return gradients
        local, shared = self.local(), []
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if same_variable(variable) in local:
                if self._scale_local:
                    gradients[i] = self.backend.scale(gradient, 1.0 / set_size(self.process_set))
            elif not self.backend.is_sparse(gradient):
                shared.append(i)
            elif self.sparse_as_dense:
                gradients[i] = self.backend.densify(gradient)
                shared.append(i)
            else:
                name = f"{self.name}.{common_name(variable, i)}"
                gradients[i] = self.backend.allreduce_sparse(
                    gradient, name, self._numbers[0], self._compression, self.process_set
                )
        self._together(gradients, shared, variables)
        return gradients

    def jit_problem(self) -> str:
        """Why this does not work in a step that is compiled by XLA; "" if it does."""
        return str(self.backend.jit_problem())

    def _together(self, gradients: list[Any], shared: list[int], variables: Sequence[Any]) -> None:
        """Puts the sums in place of those gradients that ranks have in common."""
        base = self.name
        if self._settings is not None:
            base = name_apart(base, (variable.shape for variable in variables))

        def kind(i: int) -> tuple[str, str]:
            dtype = str(gradients[i].dtype)
            return dtype, self._spec(variables[i], dtype)

        for group in self._grouped(shared, variables, kind):
            name = f"{base}.{common_name(variables[group[0]], group[0])}"
            tensors = [gradients[i] for i in group]
            compression = self._compression
            if self._settings is not None:
                spec = kind(group[0])[1]
                compression = of_spec(spec) if spec else NoneCompressor
            reduced = self.backend.grouped_allreduce(tensors, name, *self._numbers, compression, self.process_set)
            for i, tensor in zip(group, reduced, strict=True):
                gradients[i] = tensor

    def _spec(self, variable: Any, dtype: str) -> str:
        """How the engine compresses the gradient of a variable; "" for not at all."""
        if self._settings is None or "float" not in dtype:
            return ""
        size = 2 if "16" in dtype else 8 if "64" in dtype else 4
        return self._settings(getattr(variable, "path", variable.name), math.prod(variable.shape) * size) or ""

    def _grouped(self, shared: list[int], variables: Sequence[Any], kind: Callable[[int], Any]) -> list[list[int]]:
        """The indices of the gradients that go together: as asked for, but of one kind each."""
        if self._groups is None:
            parts = [shared]
        elif isinstance(self._groups, int):
            parts = split_list(shared, self._groups)
        else:
            number = {same_variable(v): n for n, group in enumerate(self._groups) for v in group}
            parts = [[] for _ in range(len(self._groups) + 1)]
            for i in shared:
                parts[number.get(same_variable(variables[i]), len(self._groups))].append(i)
        result: list[list[int]] = []
        for part in parts:
            by_kind: dict[Any, list[int]] = {}
            for i in part:
                by_kind.setdefault(kind(i), []).append(i)
            result += by_kind.values()
        return result
