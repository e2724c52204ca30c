"""Ways of gradients other than a plain allreduce: by the engine's codes, or by what users have written.

A way begins to reduce a gradient, and says what is to be waited for: a handle of the engine, or a function to call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

import torch

from corro import _native
from corro._front import basics
from corro._front.arguments import Average, Sum, set_size
from corro._front.engine_compression import Settings, settings_of
from corro._front.process_sets import ProcessSet
from corro.torch import _eager, custom
from corro.torch._tensors import storage
from corro.torch.compression import NoneCompressor

# Op and factors of an allreduce.
Numbers = tuple[int, float, float]
Rate = Callable[[torch.Tensor], float]


class Way(Protocol):
    """How gradients are reduced."""

    def start(self, name: str, p: torch.Tensor, grad: torch.Tensor) -> int | Callable[[], None]:
        """Begins to reduce the gradient of a parameter; it ends up in `grad`."""

    def remembered(self) -> dict[str, torch.Tensor]:
        """What is remembered of gradients, on this rank."""

    def remember(self, states: dict[str, torch.Tensor]) -> None:
        """Takes back what `remembered` gave, perhaps in another job."""


def way_for(compression: Any, process_set: ProcessSet, numbers: Numbers, rate: Rate) -> Way | None:
    """The way that `compression=` asks for, if Horovod does not have it."""
    own = custom.registered(compression)
    if own is not None:
        return Own(own, process_set, numbers)
    settings = settings_of(compression, NoneCompressor)
    return None if settings is None else Codes(settings, process_set, numbers, rate)


class Codes:
    """The engine's codes. `rate` tells the learning rate of a parameter, 0 if it has none."""

    def __init__(self, settings: Settings, process_set: ProcessSet, numbers: Numbers, rate: Rate) -> None:
        self._settings, self._process_set, self._numbers, self._rate = settings, process_set, numbers, rate
        # The rates for which gradients were last compressed, by name.
        self._rates: dict[str, float] = {}
        self._names: set[str] = set()

    def start(self, name: str, p: torch.Tensor, grad: torch.Tensor) -> int:
        """Each by its own name: by that the engine knows what it still owes of it. It batches them by itself."""
        code = self._settings(name, grad.nbytes) if grad.is_floating_point() else None
        if code is not None:
            self._names.add(_engine_name(name))
            self.follow_rate(name, p)
        return _eager.in_place_async(
            "allreduce", grad, self._process_set, name, *self._numbers, 0, None, code, keep=storage
        )

    def follow_rate(self, name: str, p: torch.Tensor) -> None:
        """What is owed was meant for the learning rate it comes from: with another, it must weigh as much."""
        rate = self._rate(p)
        before = self._rates.get(name, rate)
        if rate > 0:
            self._rates[name] = rate
        if rate > 0 and before not in (0.0, rate):
            _native.scale_compression(self._process_set.process_set_id, before / rate, [_engine_name(name)])

    def remembered(self) -> dict[str, torch.Tensor]:
        if not basics.is_initialized():
            return {}
        states = _native.compression_state(self._process_set.process_set_id)
        ours = {name: state for name, state in states.items() if name in self._names}
        return {name: torch.frombuffer(bytearray(state), dtype=torch.uint8) for name, state in ours.items()}

    def remember(self, states: dict[str, torch.Tensor]) -> None:
        if basics.is_initialized():
            saved = {name: _bytes(state.cpu().contiguous()) for name, state in states.items()}
            self._names.update(saved)
            _native.load_compression_state(self._process_set.process_set_id, saved)


class Own:
    """A compressor that a user has registered: what it is left with is kept here, by name."""

    def __init__(self, compressor: custom.OwnCompressor, process_set: ProcessSet, numbers: Numbers) -> None:
        self._compressor, self._process_set, self._numbers = compressor, process_set, numbers
        self._states: dict[str, Any] = {}
        self._residuals: dict[str, torch.Tensor] = {}

    def start(self, name: str, _p: torch.Tensor, grad: torch.Tensor) -> Callable[[], None]:
        own, (op, before, after) = self._compressor, self._numbers
        state = self._states.setdefault(name, own.state(grad.shape))
        values = grad * before
        residual = self._residuals.get(name)
        if residual is not None and residual.shape == grad.shape:
            values += residual
        code = own.compress(values, state)
        if own.feedback:
            self._residuals[name] = values - own.decompress(code, state, grad.shape)
        factor = after / set_size(self._process_set) if op == Average else after
        if own.combine == "sum":
            handle = _eager.into_new_async("allreduce", code, self._process_set, f"own.{name}", Sum)
        else:
            handle = _eager.resized_async("allgather", code[None], self._process_set, f"own.{name}")

        def finish() -> None:
            result = _native.wait(handle)
            codes = [result] if own.combine == "sum" else list(result)
            values = [own.decompress(one, state, grad.shape) for one in codes]
            grad.copy_(torch.stack(values).sum(0) * factor)

        return finish

    def remembered(self) -> dict[str, torch.Tensor]:
        return dict(self._residuals)

    def remember(self, states: dict[str, torch.Tensor]) -> None:
        self._residuals = dict(states)


class Hooked:
    """A communication hook, as those of torch's DDP: it reduces gradients itself."""

    def __init__(self, state: Any, hook: custom.CommHook, parameters: list[torch.Tensor]) -> None:
        self._state, self._hook = state, hook
        self._numbers = {p: number for number, p in enumerate(parameters)}

    def start(self, _name: str, p: torch.Tensor, grad: torch.Tensor) -> Callable[[], None]:
        # Gradients come from the last parameter to the first.
        number = len(self._numbers) - 1 - self._numbers[p]
        bucket = custom.GradBucket(p, grad, number, number == len(self._numbers) - 1)
        future = self._hook(self._state, bucket)

        def finish() -> None:
            reduced = future.wait()
            grad.copy_((reduced[0] if isinstance(reduced, list) else reduced).view_as(grad))

        return finish

    def remembered(self) -> dict[str, torch.Tensor]:
        return {}

    def remember(self, _states: dict[str, torch.Tensor]) -> None:
        """A hook's state is its user's."""


def _bytes(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())


def _engine_name(name: str) -> str:
    return f"allreduce.{name}"
