"""What a front gives the engine for each tensor: where its elements are, and what they are.

A framework whose tensors have addresses supplies an `Adapter`; `ops` has the operations on it. A new front is one file with
its adapter, and one with its signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from corro._native import Output

# address, shape, dtype (Horovod's number, see `corro_core::dtype`), device (-1: the CPU); and if the address is that of
# memory on the device, the stream on which it was made.
View = tuple[int, Sequence[int], int, int] | tuple[int, Sequence[int], int, int, int]

CPU = -1
UINT8 = 0
INT64 = 5


class Adapter(Protocol):
    """What is a framework's own about its tensors. A tensor's *home* is where the engine works on it: itself, or a copy.

    What an operation needs at its end is called with the places that it was begun with, and with the memory that the engine
    has allocated, if it has.
    """

    def place(self, tensor: Any) -> View | None:
        """The view of a tensor that the engine can use where it is; None if that takes a copy."""

    def reachable(self, tensor: Any) -> Any:
        """The tensor's home."""

    def view(self, home: Any, tensor: Any) -> View:
        """The home of `tensor`, in the engine's words."""

    def empty_like(self, home: Any) -> Any:
        """A new tensor for a result beside this one."""

    def hold(self, tensor: Any) -> Any:
        """What keeps the memory of a tensor that others have in hand where it is, whatever becomes of the tensor.

        If it has a method `check` and the memory is a GPU's, that is called at the end of the operation, and may raise.
        """

    def storage(self, tensor: Any) -> Any:
        """What keeps the memory of a tensor that nobody changes meanwhile: quicker than `hold`."""

    def is_on_host(self, tensor: Any) -> bool:
        """Whether it lives on the CPU."""

    def is_on_gpu(self, tensor: Any) -> bool:
        """Whether it lives on a GPU whose memory the engine may be given."""

    def device(self, tensor: Any) -> Any:
        """Where it lives: only ever compared, and told."""

    def rounded(self, numbers: tuple[Any, ...], tensor: Any) -> tuple[Any, ...]:
        """The engine's numbers (op, prescale, postscale, ...) for a tensor, as the framework would round them."""

    def rounded_each(self, numbers: tuple[Any, ...], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The same for a group, whose tensors may have several dtypes: a factor is a number, or one for each tensor."""

    def put_back(self, places: tuple[Any, Any], _output: Output | None = None) -> Any:
        """Ends an operation in place: (the tensor, its home) -> the tensor."""

    def to_device(self, places: tuple[Any, Any], _output: Output | None = None) -> Any:
        """Ends an operation with a new result: (the tensor, the result beside its home) -> the result beside the tensor."""

    def from_output(self, like: Any, output: Output | None) -> Any:
        """The memory that the engine has allocated, as a tensor with the dtype and the device of `like`."""

    def with_splits(self, like_and_device: tuple[Any, Any], output: Output | None) -> tuple[Any, Any]:
        """An alltoall's two results: the rows, and how many came from each rank."""
