"""`load_model`: a saved model whose optimizer is distributed again, with the state it was saved with."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from corro._keras.backends import backend_of
from corro._keras.gradients import distributed_part


def load_model(
    keras: Any,
    wrap: Callable[[Any], Any],
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: dict[str, Any] | None,
) -> Any:
    """Loads as Keras does, then puts `wrap(optimizer)` in the optimizer's place."""
    known = {cls.__name__: cls for cls in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=_with_makers(known, str(filepath)))
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return model
    restored = _with_state(optimizer, model, str(filepath))
    if restored is optimizer and distributed_part(optimizer) is not None:
        return model
    distributed = restored if distributed_part(restored) is not None else wrap(restored)
    model.optimizer = distributed
    # What `compile` was called with is saved with the model, and compared with nothing else.
    described = getattr(getattr(model, "_compile_config", None), "config", None)
    if isinstance(described, dict) and "optimizer" in described:
        described["optimizer"] = distributed
    if getattr(model, "jit_compile", False) and backend_of(keras).jit_problem():
        model.jit_compile = False
    model.train_function = None
    return model


def _with_makers(known: dict[str, Any], filepath: str) -> dict[str, Any]:
    """As Horovod does, takes a function for the model's optimizer: it is called with what the optimizer was made with.

    Keras 3 takes a class only, and has functions for losses and the like stand for themselves.
    """
    if not any(isinstance(value, FunctionType) for value in known.values()):
        return known
    name = _optimizer_in(filepath)
    make = known.get(name or "")
    if not isinstance(make, FunctionType):
        return known
    maker = type(str(name), (), {"from_config": staticmethod(lambda config: make(**config))})
    return {**known, str(name): maker}


def _optimizer_in(filepath: str) -> str | None:
    """The name under which a file holds its model's optimizer."""
    try:
        if zipfile.is_zipfile(filepath):
            with zipfile.ZipFile(filepath) as archive:
                described = json.loads(archive.read("config.json"))["compile_config"]["optimizer"]
        else:
            import h5py

            with h5py.File(filepath) as file:
                described = json.loads(file.attrs["training_config"])["optimizer_config"]
        return described.get("registered_name") or described["class_name"]
    except (OSError, KeyError, TypeError, AttributeError):
        return None  # a model without an optimizer; what else there may be, Keras says better


def _with_state(optimizer: Any, model: Any, filepath: str) -> Any:
    """The optimizer as it was saved.

    From a file in the old HDF5 format Keras 3 builds the optimizer of a model made of layers for no variables at all: it
    could not take a step.
    """
    forgotten = getattr(optimizer, "_trainable_variables", None) == [] and model.trainable_variables
    if not forgotten or not filepath.endswith((".h5", ".hdf5")):
        return optimizer
    import h5py

    new = type(optimizer).from_config(optimizer.get_config())
    new.build(model.trainable_variables)
    with h5py.File(filepath) as file:
        group = file["optimizer_weights"]
        # A list of names that is too long for one attribute is cut into weight_names0, weight_names1, ...
        parts = (
            ["weight_names"] if "weight_names" in group.attrs else [f"weight_names{i}" for i in range(len(group.attrs))]
        )
        names = [name for part in parts for name in group.attrs[part]]
        new.set_weights([group[name][()] for name in names])
    return new
