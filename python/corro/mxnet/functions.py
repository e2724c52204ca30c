"""Parameters and objects from one rank to all."""

from __future__ import annotations

import types
from typing import Any, TypeVar

import mxnet as mx

from corro._front import basics
from corro._front import objects as _objects
from corro.mxnet.mpi_ops import broadcast_

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]

T = TypeVar("T")


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The object of rank `root_rank`, on every rank.

    Example:
        >>> hvd.broadcast_object({"epoch": 3} if hvd.rank() == 0 else None, root_rank=0)
        {'epoch': 3}
    """
    return _objects.broadcast_object(obj, root_rank, name)


def allgather_object(obj: T, name: str | None = None) -> list[T]:
    """The objects of all ranks, in the order of ranks.

    Example:
        >>> hvd.allgather_object(f"I am {hvd.rank()}")
        ['I am 0', 'I am 1']
    """
    return _objects.allgather_object(obj, name)


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Gives every rank the parameters of rank `root_rank`, so that all start from the same weights.

    `params` is a dict of arrays or parameters, or Gluon's `ParameterDict`. Parameters whose shapes are not known yet are
    broadcast when they are initialised. Raises `ValueError` for anything else.

    Example:
        >>> weights = {"w": mx.nd.ones((2,)) * hvd.rank()}
        >>> hvd.broadcast_parameters(weights, root_rank=1)
        >>> weights["w"].asnumpy()
        array([1., 1.], dtype=float32)
    """
    if not isinstance(params, (dict, mx.gluon.parameter.ParameterDict)):
        raise ValueError(f"invalid params of type {type(params).__name__}: give a dict or a ParameterDict.")
    if basics.size() == 1:
        return
    prefix = prefix or ""
    for name, value in sorted(params.items()):
        called = f"{prefix}parameter.{name}"
        if not isinstance(value, mx.gluon.parameter.Parameter):
            broadcast_(value, root_rank, called)
            continue
        try:
            for array in value.list_data():
                broadcast_(array, root_rank, called)
        except mx.gluon.parameter.DeferredInitializationError:
            _broadcast_when_made(value, root_rank, called)


def _broadcast_when_made(parameter: Any, root_rank: int, name: str) -> None:
    make = parameter._init_impl

    def made_and_broadcast(self: Any, *args: Any, **kwargs: Any) -> None:
        make(*args, **kwargs)
        for array in self.list_data():
            broadcast_(array, root_rank, name)

    parameter._init_impl = types.MethodType(made_and_broadcast, parameter)
