"""Which backend Keras runs on, and the module that reduces its tensors."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from corro._keras.installed import is_keras2


class Backend(Protocol):
    """What a module `on_<backend>` offers. Tensors are the backend's own; inside a compiled step, its symbols."""

    Compression: Any

    def grouped_allreduce(
        self,
        tensors: list[Any],
        name: str,
        op: int,
        prescale: float,
        postscale: float,
        compression: Any,
        process_set: Any,
    ) -> list[Any]:
        """Every tensor, reduced over the ranks of the set."""

    def allreduce_sparse(self, tensor: Any, name: str, op: int, compression: Any, process_set: Any) -> Any:
        """A sparse tensor with the rows of all ranks."""

    def is_sparse(self, tensor: Any) -> bool: ...

    def densify(self, tensor: Any) -> Any: ...

    def scale(self, tensor: Any, factor: float) -> Any: ...

    def as_number(self, truth: Any) -> Any:
        """0 or 1, as a tensor of integers."""

    def only_if(self, condition: Any, change: Any, tensors: list[Any]) -> list[Any]:
        """`change(tensors)` in those steps of a compiled loop in which the condition holds."""

    def jit_problem(self) -> str:
        """Why `grouped_allreduce` does not work in a step that Keras compiled with `jit_compile=True`; "" if it does."""

    def outside(self, function: Any, tensors: list[Any], results: int) -> list[Any]:
        """`function` of the tensors as numpy arrays, also in a compiled step; its results are like the first of them."""

    def outside_problem(self) -> str:
        """Why `outside` does not work in a step that Keras compiled with `jit_compile=True`; "" if it does."""

    def look_up(self, table: Any, anchor: Any, ids: Any) -> Any:
        """Rows of a `TableAtServers`; their gradients go there when the backward pass comes, and that of the anchor is 0."""

    def watch(self, process_set: Any, name: str) -> Any:
        """What looks after a training that a program steps by itself: see `watching.LoopWatch`."""

    def uncompiled(self, function: Any) -> Any:
        """`function`, as a compiled step must call it if its compiler can't read it."""

    def internal_error(self, error: BaseException) -> str | None:
        """What went wrong, if `error` is how the backend hands on a failed collective; None if it is something else."""


# The name of Keras's backend: where its tensors are reduced.
_MODULES = {
    "tensorflow": "corro._keras.on_tensorflow",
    "torch": "corro._keras.on_torch",
    "jax": "corro._keras.on_jax",
}


def backend_of(keras: Any) -> Any:
    """The module for the backend that `keras` runs on."""
    name = "tensorflow" if is_keras2(keras) else keras.backend.backend()
    if name not in _MODULES:
        raise ImportError(
            f"corro.keras trains on Keras's backends {', '.join(_MODULES)}, but Keras runs on {name!r}. "
            f"Set KERAS_BACKEND to one of them."
        )
    return importlib.import_module(_MODULES[name])
