"""What a front gives the engine for each tensor: where its elements are, and what they are.

A framework whose tensors have addresses supplies an `Adapter`; `ops` has the operations on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from corro._native import Output

# address, shape, dtype (Horovod's number, see `corro_core::dtype`), device (-1: the CPU)
View = tuple[int, Sequence[int], int, int]

CPU = -1
UINT8 = 0
INT64 = 5


class Adapter(Protocol):
    """What is a framework's own about its tensors."""

    def home(self, tensor: Any) -> Any:
        """The tensor itself if the engine can work on it where it is, else a copy where it can; ready to be used."""

    def view(self, home: Any, tensor: Any) -> View:
        """What `home` gave for `tensor`, in the engine's words."""

    def empty_like(self, home: Any) -> Any:
        """A new tensor for a result beside this one."""

    def put_back(self, tensor: Any, home: Any) -> Any:
        """The tensor, with the elements of what `home` gave for it."""

    def beside(self, tensor: Any, result: Any) -> Any:
        """A result that lies where homes do, on the device of `tensor`."""

    def from_output(self, like: Any, output: Output | None) -> Any:
        """The memory that the engine has allocated, as a tensor with the dtype and the device of `like`."""

    def integers(self, numbers: Sequence[int], like: Any) -> Any:
        """Whole numbers, as a tensor of the framework's."""
