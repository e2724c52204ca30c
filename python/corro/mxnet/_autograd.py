"""What flows back through each operation, for MXNet's autograd."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from corro import _native
from corro._front.arguments import Average, Sum, set_size
from corro._front.objects import gather_numbers
from corro._front.process_sets import ProcessSet
from corro.mxnet._arrays import arrays, ops


class _Function(mx.autograd.Function):
    """One operation: what it does with arrays, and what with gradients."""

    def __init__(self, process_set: ProcessSet, name: str | None, *numbers: Any) -> None:
        super().__init__()
        self.process_set, self.name, self.numbers = process_set, name, numbers


class Allreduce(_Function):
    def forward(self, tensor: Any) -> Any:
        return ops.into_new("allreduce", tensor, self.process_set, self.name, *self.numbers)

    def backward(self, grad: Any) -> Any:
        return ops.into_new("allreduce", grad, self.process_set, None, *self.numbers)


class GroupedAllreduce(_Function):
    def forward(self, *tensors: Any) -> Any:
        return tuple(ops.group_into_new("allreduce", tensors, self.process_set, self.name, *self.numbers))

    def backward(self, *grads: Any) -> Any:
        return tuple(ops.group_into_new("allreduce", grads, self.process_set, None, *self.numbers))


class Allgather(_Function):
    def forward(self, *tensors: Any) -> Any:
        self.rows = [tensor.shape[0] for tensor in tensors]
        if len(tensors) == 1:
            return ops.resized("allgather", tensors[0], self.process_set, self.name)
        return tuple(ops.group_resized("allgather", tensors, self.process_set, self.name))

    def backward(self, *grads: Any) -> Any:
        whole = ops.group_into_new("allreduce", grads, self.process_set, None, Average)
        table = gather_numbers(self.rows, None, self.process_set)
        place = self.process_set.rank() or 0
        parts = []
        for i, grad in enumerate(whole):
            start = sum(table[i :: len(grads)][:place])
            parts.append(grad[start : start + self.rows[i]])
        return parts[0] if len(parts) == 1 else tuple(parts)


class Broadcast(_Function):
    def forward(self, tensor: Any) -> Any:
        return ops.into_new("broadcast", tensor, self.process_set, self.name, Sum, 1.0, 1.0, *self.numbers)

    def backward(self, grad: Any) -> Any:
        reduced = ops.into_new("allreduce", grad, self.process_set, None, Average)
        return reduced if _native.rank() == self.numbers[0] else reduced * 0


class Alltoall(_Function):
    def forward(self, tensor: Any) -> Any:
        (splits,) = self.numbers
        self.rows = tensor.shape[0]
        output, self.received = ops.alltoall(tensor, splits, None, self.process_set, self.name)
        return output

    def backward(self, grad: Any) -> Any:
        back, _ = ops.alltoall(grad, self.received, None, self.process_set, None)
        if back.shape[0] == self.rows:
            return back
        padding = mx.nd.zeros((self.rows - back.shape[0], *back.shape[1:]), ctx=back.ctx, dtype=back.dtype)
        return mx.nd.concat(back, padding, dim=0)


class Reducescatter(_Function):
    def forward(self, *tensors: Any) -> Any:
        if len(tensors) == 1:
            return ops.resized("reducescatter", tensors[0], self.process_set, self.name, *self.numbers)
        return tuple(ops.group_resized("reducescatter", tensors, self.process_set, self.name, *self.numbers))

    def backward(self, *grads: Any) -> Any:
        op, prescale, postscale = self.numbers
        factor = prescale * postscale * (set_size(self.process_set) if op == Sum else 1)
        whole = ops.group_resized("allgather", [grad * factor for grad in grads], self.process_set, None)
        return whole[0] if len(whole) == 1 else tuple(whole)


def received(function: Alltoall, like: Any) -> Any:
    """How many rows came from each rank."""
    return arrays.integers(function.received, like)
