"""The state of a torch training: models, optimizers and samplers by their state dicts, everything else as it is."""

from __future__ import annotations

import copy
from typing import Any

import torch

from corro._front import basics
from corro._front.elastic import ObjectState
from corro._front.objects import broadcast_object
from corro._native import check_running
from corro.torch.elastic.sampler import ElasticSampler
from corro.torch.functions import broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """How one kind of object is saved, restored and taken over from rank 0."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        """Takes over what rank 0 has now. `save` follows when everything has arrived."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Another object takes this one's place, and is saved."""
        self.value = value
        self.save()


class StateDictHandler(StateHandler):
    """For what has `state_dict` and `load_state_dict`: schedulers, gradient scalers and the like."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy: an optimizer goes on with the very tensors it was given, and would change what is saved.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), 0, "elastic.state"))


class ModelStateHandler(StateDictHandler):
    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(StateDictHandler):
    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(StateDictHandler):
    pass


_handlers: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, StateDictHandler),
    (torch.amp.GradScaler, StateDictHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    return _handlers


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    global _handlers
    _handlers = registry


def _await_gpus() -> None:
    """What is saved must be worth it. A GPU may still be at the last collectives; if a rank is lost meanwhile, it goes on with
    whatever it has.
    """
    if basics.is_initialized() and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        check_running()


class TorchState(ObjectState):
    """Model, optimizer, schedulers, samplers and plain values of a training, as attributes.

    `commit()` saves them all in memory and looks whether hosts have changed; `restore()` goes back to the last commit;
    `sync()` takes over what rank 0 has. `hvd.elastic.run` calls the last two.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> state = hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1), epoch=0)
        >>> state.epoch = 1
        >>> state.restore()
        >>> state.epoch
        0
    """

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

    def commit(self) -> None:
        for sampler in self._samplers():
            sampler.share_indices()
        super().commit()

    def save(self) -> None:
        _await_gpus()
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
        for sampler in self._samplers():
            sampler.reset()

    def _samplers(self) -> list[ElasticSampler]:
        return [h.value for h in self._handlers.values() if isinstance(h.value, ElasticSampler)]

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
    "StateDictHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]
