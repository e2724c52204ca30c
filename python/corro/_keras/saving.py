"""`load_model`: a saved model whose optimizer is distributed again, with the state it was saved with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from corro._keras import manners
from corro._keras.backends import backend_of


def load_model(
    keras: Any,
    wrap: Callable[[Any], Any],
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: dict[str, Any] | None,
) -> Any:
    """Loads as Keras does, then puts `wrap(optimizer)` in the optimizer's place."""
    known = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or manners.distributed_part(optimizer) is not None:
        return model
    model.optimizer = distributed = wrap(_with_state(optimizer, model, str(filepath)))
    # What `compile` was called with is saved with the model, and compared with nothing else.
    described = getattr(getattr(model, "_compile_config", None), "config", None)
    if isinstance(described, dict) and "optimizer" in described:
        described["optimizer"] = distributed
    if getattr(model, "jit_compile", False) and backend_of(keras).jit_problem():
        model.jit_compile = False
    model.train_function = None
    return model


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
