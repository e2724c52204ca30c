"""One's own ways of gradients: compressors, and communication hooks as those of torch's DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from corro import _native
from corro._front.arguments import Average
from corro._front.process_sets import ProcessSet, global_process_set
from corro.torch import _eager

__all__ = ["CommHook", "GradBucket", "OwnCompressor", "allreduce_future", "register_compressor"]


class OwnCompressor:
    """What a compressor of your own must do; see `register_compressor`.

    With `combine = "sum"` codes are added up, and the sum is decompressed: for codes that are linear. With "gather" all
    ranks get all codes, decompress each, and add those up. With `feedback` what a code leaves out is added the next time.
    """

    combine = "gather"
    feedback = True

    def state(self, shape: torch.Size) -> Any:
        """What is to be remembered of a tensor; handed to the others."""
        return None

    def compress(self, values: torch.Tensor, state: Any) -> torch.Tensor:
        """The code: a tensor of the same shape on all ranks."""
        raise NotImplementedError

    def decompress(self, code: torch.Tensor, state: Any, shape: torch.Size) -> torch.Tensor:
        """What a code (or a sum of them) says of the values."""
        raise NotImplementedError


_registered: dict[str, OwnCompressor] = {}


def register_compressor(name: str, compressor: OwnCompressor) -> None:
    """Makes a compressor of your own known: then `DistributedOptimizer(..., compression=name)` uses it.

    It works on torch's tensors, on all ranks alike, inside a host as well as between hosts.

    Example:
        >>> class Halves(hvd.OwnCompressor):
        ...     def compress(self, values, state):
        ...         return values.half()
        ...
        ...     def decompress(self, code, state, shape):
        ...         return code.float()
        >>> hvd.register_compressor("halves", Halves())
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression="halves")
    """
    if compressor.combine not in ("sum", "gather"):
        raise ValueError(f'compressor {name!r}: combine must be "sum" or "gather", not {compressor.combine!r}.')
    _registered[name] = compressor


def registered(compression: Any) -> OwnCompressor | None:
    """The compressor that `compression=` asks for, if it is one of these."""
    if isinstance(compression, OwnCompressor):
        return compression
    return _registered.get(compression) if isinstance(compression, str) else None


class Future(Protocol):
    """What a hook gives: torch's futures are such, and so is what `allreduce_future` gives."""

    def wait(self) -> Any:
        """The result, once it is there."""


CommHook = Callable[[Any, "GradBucket"], Future]


class GradBucket:
    """What a communication hook is given: a gradient, as torch's DDP does; here each has its own."""

    def __init__(self, parameter: torch.Tensor, gradient: torch.Tensor, index: int, is_last: bool) -> None:
        self._parameter, self._gradient, self._index, self._is_last = parameter, gradient, index, is_last

    def index(self) -> int:
        """Which it is: gradients come from the last parameter to the first."""
        return self._index

    def is_last(self) -> bool:
        """Whether it is the last one of a backward pass."""
        return self._is_last

    def buffer(self) -> torch.Tensor:
        """The gradient as a vector."""
        return self._gradient.view(-1)

    def gradients(self) -> list[torch.Tensor]:
        """The gradient in its shape."""
        return [self._gradient]

    def parameters(self) -> list[torch.Tensor]:
        """Whose it is."""
        return [self._parameter]


class _Later:
    """The result of an operation in flight, and what is to be done with it: done when somebody waits."""

    def __init__(self, result: Callable[[], Any]) -> None:
        self._result = result

    def wait(self) -> Any:
        return self._result()

    value = wait

    def then(self, callback: Callable[[Any], Any]) -> _Later:
        """What the callback makes of this future."""
        return _Later(lambda: callback(self))


def allreduce_future(
    tensor: torch.Tensor, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> _Later:
    """An allreduce in place whose result comes as a future, for communication hooks: `wait()`, `value()`, `then(callback)`.

    Example:
        >>> hvd.allreduce_future(torch.ones(2)).then(lambda future: 2 * future.value()).wait()
        tensor([2., 2.])
    """
    handle = _eager.in_place_async("allreduce", tensor, process_set, name, op)
    done: list[Any] = []

    def result() -> Any:
        if not done:
            done.append(_native.wait(handle))
        return done[0]

    return _Later(result)
