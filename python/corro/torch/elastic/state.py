"""The state of a torch training: models, optimizers and samplers by their state dicts, everything else as it is."""

from __future__ import annotations

import copy
from typing import Any

import torch

from corro._front import basics
from corro._front.elastic import ObjectState
from corro._front.objects import broadcast_object
from corro.torch.elastic.sampler import ElasticSampler
from corro.torch.functions import broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """How one kind of object is saved, restored and sent around."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Another object takes this one's place, and is saved."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateHandler):
    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        # The ranks agree on how far the epoch is by rank 0, whose model they take as well.
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), 0, "sampler_state"))
        self.save()


_handlers: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    return _handlers


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    global _handlers
    _handlers = registry


class TorchState(ObjectState):
    """Model, optimizer, samplers and plain values of a training."""

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        given = {**kwargs, "model": model, "optimizer": optimizer}
        self._handlers = {name: handler for name, value in given.items() if (handler := _handler_for(value))}
        plain = {name: value for name, value in kwargs.items() if name not in self._handlers}
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **plain)
        for name, value in given.items():
            if name in self._handlers or name not in plain:
                object.__setattr__(self, name, value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)


def _handler_for(value: Any) -> StateHandler | None:
    for kind, handler in _handlers:
        if isinstance(value, kind):
            return handler(value)
    return None


__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]
