"""Bringing all ranks to the same state: parameters, optimizer state, any object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from corro import _native
from corro._front.objects import allgather_object, broadcast_object
from corro._front.process_sets import global_process_set
from corro.torch import _eager
from corro.torch.mpi_ops import broadcast_async_, synchronize
from corro.torch.optimizer import REMEMBERED, local_step

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrites the tensors on every rank with those of `root_rank`, so that all start from the same weights.

    `params` is a dict, such as `model.state_dict()`, or a list of (name, tensor), such as `list(model.named_parameters())`.
    Raises `ValueError` for anything else.

    Example:
        >>> model = torch.nn.Linear(2, 1)  # random, and different on each rank
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    if isinstance(params, Mapping):
        named: Iterable[tuple[str | None, Any]] = sorted(params.items())
    elif isinstance(params, list):
        named = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(f"invalid params of type {type(params).__name__}: give a dict or a list of (name, tensor).")
    _broadcast_all([(name, tensor) for name, tensor in named if tensor is not None], root_rank)


def _broadcast_all(named: list[tuple[str | None, Any]], root_rank: int) -> None:
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"cannot broadcast {name}: it is of type {type(tensor).__name__}, not a tensor.")
    handles = [broadcast_async_(tensor, root_rank, name) for name, tensor in named]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Gives every rank the state and options (learning rate and the like) of the optimizer on `root_rank`.

    Root first says what its state looks like, so that the others need none of their own. Where there is no state yet it
    is made, by a step with gradients of zero that leaves the parameters alone: as with Horovod, a script finds gradients
    and state after this call. `model` helps with that if it has embeddings whose gradients are sparse. Raises `ValueError`
    for `torch.optim.LBFGS`.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if hvd.rank() == 0 else 0.5)
        >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        >>> optimizer.param_groups[0]["lr"]
        0.1
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        # Its state is a history of closures' results; ranks of it can differ in length at any time.
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    is_root = _native.rank() == root_rank
    if not optimizer.state:
        _make_state(optimizer, model)
    mine = optimizer.state_dict()
    # What compression still owes is each rank's own.
    mine.pop(REMEMBERED, None)
    tensors: list[torch.Tensor] = []
    outline = _outline(mine, tensors) if is_root else None
    outline = broadcast_object(outline, root_rank, "optimizer_state")
    if not is_root:
        device_of = {i: p.device for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
        state = _filled(outline, tensors, device_of)
    _broadcast_all([(f"optimizer_state.{i}", tensor) for i, tensor in enumerate(tensors)], root_rank)
    if not is_root:
        optimizer.load_state_dict(state)


def _make_state(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """One step of the optimizer itself, without the other ranks, that changes nothing but its state."""
    layers = model.modules() if model is not None else ()
    sparse = {layer.weight for layer in layers if getattr(layer, "sparse", False)}
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    before = [p.detach().clone() for p in trained]
    for p in trained:
        if p.grad is None:
            p.grad = torch.zeros_like(p).to_sparse() if p in sparse else torch.zeros_like(p)
    try:
        local_step(optimizer)
    except RuntimeError:
        # It may want gradients of another kind (SparseAdam). Then it has no state, which is a state too.
        optimizer.state.clear()
    with torch.no_grad():
        for p, value in zip(trained, before, strict=True):
            p.copy_(value)


class _Place:
    """Where a tensor belongs in an outline."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.on_cpu = tensor.is_cpu


def _outline(part: Any, tensors: list[torch.Tensor]) -> Any:
    """A state dict with a `_Place` for each tensor; the tensors are appended in order."""
    if isinstance(part, torch.Tensor):
        tensors.append(part)
        return _Place(part)
    if isinstance(part, dict):
        return {key: _outline(value, tensors) for key, value in part.items()}
    if isinstance(part, (list, tuple)) and type(part) in (list, tuple):
        return type(part)(_outline(value, tensors) for value in part)
    return part


def _filled(part: Any, tensors: list[torch.Tensor], device_of: dict[int, torch.device], key: Any = None) -> Any:
    """The opposite: a state dict with an empty tensor in each `_Place`, appended in the same order."""
    if isinstance(part, _Place):
        device = "cpu" if part.on_cpu else device_of.get(key, "cpu")
        tensors.append(torch.empty(part.shape, dtype=part.dtype, device=device))
        return tensors[-1]
    if isinstance(part, dict):
        # In a state dict the numbers are those of parameters, whose tensors live beside them.
        return {
            name: _filled(value, tensors, device_of, name if isinstance(name, int) else key)
            for name, value in part.items()
        }
    if type(part) in (list, tuple):
        return type(part)(_filled(value, tensors, device_of, key) for value in part)
    return part


def average_metric(value: float, name: str | None = None) -> float:
    """The mean of a number over all ranks: for a loss or an accuracy that rank 0 reports."""
    return _eager.into_new("allreduce", torch.tensor(float(value)), global_process_set, name, 0).item()
