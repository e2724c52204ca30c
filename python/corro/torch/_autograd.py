"""The gradients of the collectives, as Horovod defines them. The operations of a backward pass are unnamed."""

from __future__ import annotations

from typing import Any

import torch

from corro import _native
from corro._front.arguments import Average, Sum, rows_per_rank, set_size
from corro._front.objects import gather_numbers
from corro._front.process_sets import ProcessSet
from corro.torch import _eager

Grads = tuple[Any, ...]


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, process_set: ProcessSet, name: str | None, *numbers: Any
    ) -> torch.Tensor:
        ctx.process_set, ctx.numbers = process_set, numbers
        return _eager.into_new("allreduce", tensor, process_set, name, *numbers)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Grads:  # type: ignore[override]
        # Not compressed, where the tensor was: what is kept of a tensor is its own, not its gradient's.
        reduced = _eager.into_new("allreduce", grad, ctx.process_set, None, *ctx.numbers[:3])
        return (reduced, None, None, *(None for _ in ctx.numbers))


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, process_set: ProcessSet, name: str | None, op: int, prescale: float, postscale: float, *tensors: Any
    ) -> tuple[torch.Tensor, ...]:
        ctx.process_set, ctx.numbers = process_set, (op, prescale, postscale)
        handle = _eager.group_into_new_async("allreduce", tensors, process_set, name, op, prescale, postscale)
        return _native.wait(handle)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Grads:  # type: ignore[override]
        handle = _eager.group_into_new_async("allreduce", grads, ctx.process_set, None, *ctx.numbers)
        return (None, None, None, None, None, *_native.wait(handle))


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, process_set: ProcessSet, name: str | None) -> torch.Tensor:
        ctx.process_set, ctx.rows = process_set, tensor.shape[0]
        return _eager.resized("allgather", tensor, process_set, name)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Grads:  # type: ignore[override]
        reduced = _eager.into_new("allreduce", grad, ctx.process_set, None, Average)
        return own_rows(reduced, gather_numbers([ctx.rows], None, ctx.process_set), ctx.process_set), None, None


class GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, process_set: ProcessSet, name: str | None, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.process_set, ctx.rows = process_set, [tensor.shape[0] for tensor in tensors]
        return _native.wait(_eager.group_resized_async("allgather", tensors, process_set, name))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Grads:  # type: ignore[override]
        reduced = _native.wait(_eager.group_into_new_async("allreduce", grads, ctx.process_set, None, Average))
        # One rank's row counts for all tensors come together: every len(grads)-th number belongs to one tensor.
        rows = gather_numbers(ctx.rows, None, ctx.process_set)
        parts = [own_rows(grad, rows[i :: len(grads)], ctx.process_set) for i, grad in enumerate(reduced)]
        return (None, None, *parts)


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, process_set: ProcessSet, name: str | None
    ) -> torch.Tensor:
        ctx.process_set, ctx.root_rank = process_set, root_rank
        return _eager.into_new("broadcast", tensor, process_set, name, Sum, 1.0, 1.0, root_rank)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Grads:  # type: ignore[override]
        reduced = _eager.into_new("allreduce", grad, ctx.process_set, None, Average)
        if _native.rank() != ctx.root_rank:
            reduced.zero_()
        return reduced, None, None, None


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: list[int], device: Any, process_set: ProcessSet, name: str | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, received = _eager.alltoall(tensor, splits, device, process_set, name)
        ctx.process_set, ctx.rows, ctx.received = process_set, tensor.shape[0], received.tolist()
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _received: Any) -> Grads:  # type: ignore[override]
        back, _ = _eager.alltoall(grad, ctx.received, None, ctx.process_set, None)
        return pad_rows(back, ctx.rows), None, None, None, None


class Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, process_set: ProcessSet, name: str | None, *numbers: Any
    ) -> torch.Tensor:
        ctx.process_set, ctx.numbers = process_set, numbers
        return _eager.resized("reducescatter", tensor, process_set, name, *numbers)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Grads:  # type: ignore[override]
        grad = scatter_gradient(grad, ctx.process_set, *ctx.numbers)
        return (_eager.resized("allgather", grad, ctx.process_set, None), None, None, *(None for _ in ctx.numbers))


class GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, process_set: ProcessSet, name: str | None, op: int, prescale: float, postscale: float, *tensors: Any
    ) -> tuple[torch.Tensor, ...]:
        ctx.process_set, ctx.numbers = process_set, (op, prescale, postscale)
        handle = _eager.group_resized_async("reducescatter", tensors, process_set, name, op, prescale, postscale)
        return _native.wait(handle)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Grads:  # type: ignore[override]
        scaled = [scatter_gradient(grad, ctx.process_set, *ctx.numbers) for grad in grads]
        gathered = _native.wait(_eager.group_resized_async("allgather", scaled, ctx.process_set, None))
        return (None, None, None, None, None, *gathered)


def own_rows(gathered: torch.Tensor, rows: list[int], process_set: ProcessSet) -> torch.Tensor:
    """The part of an allgather's result that this rank has put in."""
    place = process_set.rank() or 0
    return gathered.narrow(0, sum(rows[:place]), rows[place])


def pad_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Rows that were not sent have no gradient."""
    missing = rows - tensor.shape[0]
    return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))]) if missing else tensor


def scatter_gradient(
    grad: torch.Tensor, process_set: ProcessSet, op: int, prescale: float, postscale: float
) -> torch.Tensor:
    """What a rank's rows contribute to the gradient of a reducescatter."""
    factor = prescale * postscale * (set_size(process_set) if op == Sum else 1)
    return grad if factor == 1 else grad * factor


def scattered_rows(rows: int, process_set: ProcessSet) -> int:
    """How many of `rows` a reducescatter gives to this rank."""
    return rows_per_rank(rows, set_size(process_set))[process_set.rank() or 0]
