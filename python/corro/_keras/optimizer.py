"""`DistributedOptimizer`: any Keras optimizer, with its gradients reduced over the ranks before they are used."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from corro._front import checks
from corro._front.arguments import Average
from corro._front.process_sets import ProcessSet, global_process_set
from corro._keras import keras2, patches
from corro._keras.backends import backend_of
from corro._keras.gradients import Reducer, checked_groups, common_name, is_distributed
from corro._keras.installed import is_keras2, keras_of


class VariableList(list[Any]):
    """The variables of an optimizer. Old scripts call it."""

    def __call__(self) -> VariableList:
        return self


@dataclass(frozen=True)
class Settings:
    """What was asked of `DistributedOptimizer` or `PartialDistributedOptimizer`."""

    name: str | None = None
    compression: Any = None
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = Average
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    num_groups: int = 0
    groups: Any = None
    process_set: ProcessSet = global_process_set
    local_layers: Any = None
    scale_local_gradients: bool = True
    mode: str = "allreduce"
    staleness: int | None = 0
    servers: Any = None


def distributed(keras: Any, optimizer: Any, settings: Settings) -> Any:
    """The same optimizer, whose steps use the gradients of all ranks of the set.

    The result is an instance of a subclass of the optimizer's class and is saved as that class: a model saved with it is
    loaded by plain Keras. An optimizer that has been built keeps its state; a new one is copied.
    """
    keras = keras_of(optimizer, otherwise=keras)
    if not isinstance(optimizer, keras.optimizers.Optimizer) and not is_keras2(keras):
        raise ValueError(
            f"DistributedOptimizer takes an optimizer of the Keras in use ({keras.__name__} {keras.__version__}), "
            f"such as keras.optimizers.Adam(), not {type(optimizer).__module__}.{type(optimizer).__name__}. "
            f"For optimizers of tf.compat.v1 there is corro.tensorflow.DistributedOptimizer."
        )
    if is_distributed(optimizer):
        raise ValueError("this optimizer is distributed already: wrapping it twice would reduce gradients twice.")
    if settings.backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0.")
    settings = replace(settings, groups=checked_groups(settings.groups, settings.num_groups), num_groups=0)
    reducer = _reducer(keras, optimizer, settings)
    reducer.add_local_layers(_checked_layers(keras, settings.local_layers))
    patches.patch_training(keras)
    twin = _keras2_twin(optimizer) if is_keras2(keras) else _keras3_twin(keras, optimizer, settings)
    twin._distribute(reducer, settings.backward_passes_per_step, settings.average_aggregated_gradients)
    return twin


def _reducer(keras: Any, optimizer: Any, settings: Settings) -> Reducer:
    name = settings.name or f"Distributed{type(optimizer).__name__}"
    if settings.mode == "allreduce":
        return Reducer(
            backend_of(keras),
            name,
            settings.op,
            settings.compression,
            settings.sparse_as_dense,
            settings.gradient_predivide_factor,
            settings.groups,
            settings.process_set,
            settings.scale_local_gradients,
        )
    # Most programs never need them.
    from corro._keras import served
    from corro.ps import _training

    _training.check(settings.mode, settings.staleness)
    if is_keras2(keras):
        raise ValueError('mode="ps" is for Keras 3; the old Keras of tf_keras has allreduce only.')
    rule = _training.rule_of(settings.op, settings.gradient_predivide_factor)
    if settings.staleness == 0:
        return served.ReducerOfSums(
            backend_of(keras),
            name,
            rule,
            settings.compression,
            settings.sparse_as_dense,
            settings.process_set,
            settings.scale_local_gradients,
            settings.servers,
        )
    if settings.backward_passes_per_step > 1 or getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError("servers that own the parameters take every gradient: backward_passes_per_step must be 1.")
    return served.ReducerThatOwns(
        backend_of(keras),
        name,
        optimizer,
        settings.compression,
        settings.staleness,
        settings.process_set,
        settings.servers,
    )


def _checked_layers(keras: Any, layers: Any) -> list[Any]:
    listed = [] if layers is None else list(layers) if isinstance(layers, (list, tuple)) else [layers]
    if any(not isinstance(layer, keras.layers.Layer) for layer in listed):
        raise ValueError("local_layers must be a Keras layer or a list of Keras layers.")
    return listed


class SameClass(type):
    """The class of a distributed optimizer's class, which equals the class it was made from.

    Keras has tables from classes to the names it writes into a saved model: in those, the two are one.
    """

    _made_from: type

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls._made_from

    def __hash__(cls) -> int:
        return hash(cls._made_from)


def _keras3_twin(keras: Any, optimizer: Any, settings: Settings) -> Any:
    """An optimizer like this one, with the methods of `DistributedKeras3` before its own."""
    cls = type(optimizer)

    def from_config(_: type, *args: Any, **kwargs: Any) -> Any:
        return _distributed_again(cls.from_config(*args, **kwargs), settings, keras)

    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        "_made_from": cls,
        "_settings": settings,
        "from_config": classmethod(from_config),
    }
    kind = SameClass if type(cls) is type else type("SameClass", (SameClass, type(cls)), {})
    new: Any = object.__new__(kind(cls.__name__, (DistributedKeras3, cls), namespace))
    new.__dict__.update(_source(optimizer).__dict__)
    return new


def _keras2_twin(optimizer: Any) -> Any:
    cls = type(optimizer)
    # Keras 2 marks its classes by attributes of their own: what it writes into a saved model is `optimizer.__class__`.
    # So its module is free to be Horovod's, by which programs of that time tell a distributed optimizer.
    namespace = {"__module__": "horovod._keras", "__doc__": cls.__doc__, "__class__": property(lambda self: cls)}
    new: Any = object.__new__(type(cls.__name__, (keras2.DistributedKeras2, cls), namespace))
    new.__dict__.update(_source(optimizer).__dict__)
    return new


def _distributed_again(optimizer: Any, settings: Settings, keras: Any = None) -> Any:
    """A distributed optimizer from the plain copy of one."""
    if settings.backward_passes_per_step > 1:
        optimizer.gradient_accumulation_steps = None  # the copy has learned these from the settings
    return distributed(keras or importlib.import_module("keras"), optimizer, settings)


def _source(optimizer: Any) -> Any:
    """What the twin is made of: the optimizer itself once it has state, otherwise a copy, so that it can be used again."""
    if getattr(optimizer, "built", False) or keras2.has_state(optimizer):
        return optimizer
    try:
        copy = type(optimizer).from_config(optimizer.get_config())
    except Exception:
        # A learning rate that is a lambda, a class without get_config: what cannot be described is taken as it is.
        return optimizer
    # What was set beside the constructor's arguments is not described either, as by `exclude_from_weight_decay`.
    for attribute, value in optimizer.__dict__.items():
        copy.__dict__.setdefault(attribute, value)
    return copy


class PassesSoFar(NamedTuple):
    """How many backward passes have been added up since the last step, and of how many."""

    counter: Any
    backward_passes_per_step: int


# What a distributed optimizer has beside the attributes of its class.
OURS = ("_reducer", "_passes", "_average_passes", "_inside", "_pending", "_is_watched")


class DistributedKeras3:
    """What is put before the class of a Keras 3 optimizer.

    Gradients are reduced where they enter. When they are accumulated over several steps, by Keras's own means, they are
    reduced where the sum leaves.
    """

    _made_from: type
    _settings: Settings
    _reducer: Reducer
    _passes: int
    _average_passes: bool
    _inside: bool
    _pending: Sequence[Any]
    _is_watched: bool

    # From the optimizer's class.
    built: bool
    learning_rate: Any
    gradient_accumulation_steps: int | None
    _iterations: Any
    _trainable_variables: list[Any]

    def _distribute(self, reducer: Reducer, passes: int, average_passes: bool) -> None:
        # Not by `setattr`, which would have Keras track these as parts of the model.
        ours = (reducer, passes, average_passes, False, (), False)
        self.__dict__.update(zip(OURS, ours, strict=True))
        if passes > 1:
            self._accumulate(passes)

    def _accumulate(self, passes: int) -> None:
        if getattr(self, "inner_optimizer", None) is not None or hasattr(self, "optimizer_map"):
            raise ValueError(
                f"backward_passes_per_step does not work with {type(self).__name__}, which wraps other optimizers: "
                f"give gradient_accumulation_steps to those."
            )
        if self.gradient_accumulation_steps:
            raise ValueError(
                "the optimizer has gradient_accumulation_steps already: leave backward_passes_per_step at 1."
            )
        self.gradient_accumulation_steps = passes
        if self.built:
            add: Any = self.add_variable_from_reference  # type: ignore[attr-defined]
            accumulators = [add(variable, name="gradient_accumulator") for variable in self._trainable_variables]
            self.__dict__["_accumulated_gradients"] = accumulators

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced: each rank trains its own."""
        self._reducer.add_local_variable(var)

    def __reduce__(self) -> Any:
        """Copies and pickles of the optimizer are distributed too, if Keras can copy and pickle the plain one."""
        plain: Any = object.__new__(self._made_from)
        plain.__dict__.update({name: value for name, value in self.__dict__.items() if name not in OURS})
        return _distributed_again, (plain, self._settings)

    @property
    def variables(self) -> VariableList:
        return VariableList(super().variables)  # type: ignore[misc]

    @property
    def lr(self) -> Any:
        """Keras 2's name. Without it, `optimizer.lr = ...` of an old script would set nothing, and say nothing."""
        return self.learning_rate

    @lr.setter
    def lr(self, rate: Any) -> None:
        self.learning_rate = rate

    @property
    def _agg_helper(self) -> PassesSoFar | None:
        """By Horovod's name: programs look at its counter."""
        return PassesSoFar(self._iterations % self._passes, self._passes) if self._passes > 1 else None

    @property
    def iterations(self) -> Any:
        # With backward_passes_per_step every call counts, as in Horovod.
        return self._iterations if self._passes > 1 else super().iterations  # type: ignore[misc]

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        reduced = self._entering(grads, trainable_variables)
        with self._already_reduced():
            return super().apply(reduced, trainable_variables)  # type: ignore[misc]

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        reduced = self._entering([gradient for gradient, _ in pairs], variables)
        with self._already_reduced():
            return super().apply_gradients(list(zip(reduced, variables, strict=True)), **kwargs)  # type: ignore[misc]

    def stateless_apply(self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        # The variables are not those of the optimizer, so that these are not looked at.
        with self._watched_elsewhere():
            reduced = self._entering(grads, None)
        with self._watched_elsewhere(), self._already_reduced():
            return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]

    def _entering(self, gradients: Sequence[Any], variables: Any) -> list[Any]:
        if self._inside:
            return list(gradients)
        if self.gradient_accumulation_steps:
            return self._densified(gradients)
        variables = self._trainable_variables if variables is None else list(variables)
        return self._looked_after(self._reducer(gradients, variables), variables)

    def _looked_after(self, reduced: list[Any], variables: Sequence[Any]) -> list[Any]:
        if not self._is_watched:
            self._reducer.look(reduced, variables, self._numbers)
        return reduced

    def _numbers(self) -> dict[tuple[str, str], Any]:
        """What the ranks compare of an optimizer."""
        return {(checks.RATE, ""): self.learning_rate, (checks.STEPS, ""): self._iterations}

    @contextmanager
    def _watched_elsewhere(self) -> Iterator[None]:
        """For `fit`, whose callback has the ranks compare what they train, outside of the steps."""
        before = self._is_watched
        self.__dict__["_is_watched"] = True
        try:
            yield
        finally:
            self.__dict__["_is_watched"] = before

    def _densified(self, gradients: Sequence[Any]) -> list[Any]:
        """Accumulators are dense; a sparse gradient becomes so only if the user agrees."""
        backend = self._reducer.backend
        sparse = [gradient is not None and backend.is_sparse(gradient) for gradient in gradients]
        if any(sparse) and not self._reducer.sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported with backward_passes_per_step > 1 without sparse_as_dense."
            )
        return [backend.densify(g) if is_sparse else g for g, is_sparse in zip(gradients, sparse, strict=True)]

    @contextmanager
    def _already_reduced(self) -> Iterator[None]:
        """Keras's methods call each other."""
        before = self._inside
        self.__dict__["_inside"] = True
        try:
            yield
        finally:
            self.__dict__["_inside"] = before

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> Any:
        self.__dict__["_pending"] = list(trainable_variables)
        return super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        """Called in each step; with accumulation, in those that change the model, with what was accumulated."""
        steps = self.gradient_accumulation_steps
        if steps:
            is_update_step = (self._iterations + 1) % steps == 0
            grads = self._reducer.backend.only_if(is_update_step, self._leaving, list(grads))
        return super()._clip_gradients(grads)  # type: ignore[misc]

    @property
    def store(self) -> Any:
        """Where the parameters are, if servers own them (`mode="ps"` with a staleness); it saves and loads them."""
        return self._reducer.owned.store  # type: ignore[attr-defined]

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        if not hasattr(self._reducer, "owned"):
            super()._apply_weight_decay(variables)  # type: ignore[misc]

    def _backend_update_step(self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any) -> Any:
        reducer: Any = self._reducer
        if not hasattr(reducer, "owned"):
            return super()._backend_update_step(grads, trainable_variables, learning_rate)  # type: ignore[misc]
        numbers = [self._get_variable_index(v) for v in trainable_variables]  # type: ignore[attr-defined]
        names = [f"{reducer.name}.{common_name(v, i)}" for v, i in zip(trainable_variables, numbers, strict=True)]
        values = [variable.value for variable in trainable_variables]
        # A variable of Keras's, unless a schedule has computed it.
        learning_rate = getattr(learning_rate, "value", learning_rate)
        for variable, new in zip(trainable_variables, reducer.update(names, grads, values, learning_rate), strict=True):
            variable.assign(new)
        return None

    def _leaving(self, gradients: list[Any]) -> list[Any]:
        reduced = self._looked_after(self._reducer(gradients, self._pending), self._pending)
        if self._passes == 1 or self._average_passes:
            return reduced
        # Keras has divided by the number of steps.
        return [self._reducer.backend.scale(gradient, float(self._passes)) for gradient in reduced]
