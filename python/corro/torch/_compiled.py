"""The collectives inside `torch.compile`: custom operators that the compiler can place in its graph.

Each has a fake kernel (what the result looks like) and a gradient. A call through an operator costs 10 to 20 us more than
the direct one, so code that is not being compiled never comes here. Functions take what `mpi_ops` has checked; operators
take numbers and strings only, "" for no name.
"""

# No `from __future__ import annotations` here: torch reads the operators' annotations as types.
from collections.abc import Sequence
from typing import Any

import torch
from torch.library import custom_op

from corro import _native
from corro._front.arguments import Average, Sum, alltoall_splits, set_size
from corro._front.objects import gather_numbers
from corro._front.process_sets import ProcessSet, process_set_by_id
from corro.torch import _autograd, _eager


def _set_id(process_set: ProcessSet) -> int:
    # -1 stands for "not registered", which the engine refuses when the graph runs.
    return -1 if process_set.process_set_id is None else process_set.process_set_id


# What `mpi_ops` calls while a graph is being captured.


def allreduce(
    tensor: Any, process_set: ProcessSet, name: str | None, op: int, prescale: float, postscale: float
) -> Any:
    return torch.ops.corro.allreduce(tensor, _set_id(process_set), name or "", op, prescale, postscale)


def allreduce_(
    tensor: Any, process_set: ProcessSet, name: str | None, op: int, prescale: float, postscale: float
) -> Any:
    torch.ops.corro.allreduce_(tensor, _set_id(process_set), name or "", op, prescale, postscale)
    return tensor


def grouped_allreduce(
    tensors: Sequence[Any], process_set: ProcessSet, name: str | None, op: int, prescale: float, postscale: float
) -> Any:
    return torch.ops.corro.grouped_allreduce(tensors, _set_id(process_set), name or "", op, prescale, postscale)


def allgather(tensor: Any, process_set: ProcessSet, name: str | None) -> Any:
    return torch.ops.corro.allgather(tensor, _set_id(process_set), name or "")


def broadcast(tensor: Any, root_rank: int, process_set: ProcessSet, name: str | None) -> Any:
    return torch.ops.corro.broadcast(tensor, root_rank, _set_id(process_set), name or "")


def broadcast_(tensor: Any, root_rank: int, process_set: ProcessSet, name: str | None) -> Any:
    torch.ops.corro.broadcast_(tensor, root_rank, _set_id(process_set), name or "")
    return tensor


def alltoall(tensor: Any, splits: Any, process_set: ProcessSet, name: str | None) -> Any:
    numbers = splits.tolist() if isinstance(splits, torch.Tensor) else list(splits or [])
    output, received = torch.ops.corro.alltoall(tensor, numbers, _set_id(process_set), name or "")
    return output if splits is None else (output, received)


def reducescatter(
    tensor: Any, process_set: ProcessSet, name: str | None, op: int, prescale: float, postscale: float
) -> Any:
    return torch.ops.corro.reducescatter(tensor, _set_id(process_set), name or "", op, prescale, postscale)


# The operators. A custom operator must not return its input, which none of these does.


@custom_op("corro::allreduce", mutates_args=())
def _allreduce(
    tensor: torch.Tensor, set_id: int, name: str, op: int, prescale: float, postscale: float
) -> torch.Tensor:
    return _eager.into_new("allreduce", tensor, process_set_by_id(set_id), name or None, op, prescale, postscale)


@custom_op("corro::allreduce_", mutates_args=("tensor",))
def _allreduce_(tensor: torch.Tensor, set_id: int, name: str, op: int, prescale: float, postscale: float) -> None:
    _eager.in_place("allreduce", tensor, process_set_by_id(set_id), name or None, op, prescale, postscale)


# Schemas of lists are written out: older versions of torch do not read today's annotations of them.
@custom_op(
    "corro::grouped_allreduce",
    mutates_args=(),
    schema="(Tensor[] tensors, int set_id, str name, int op, float prescale, float postscale) -> Tensor[]",
)
def _grouped_allreduce(
    tensors: list[torch.Tensor], set_id: int, name: str, op: int, prescale: float, postscale: float
) -> list[torch.Tensor]:
    process_set = process_set_by_id(set_id)
    handle = _eager.group_into_new_async("allreduce", tensors, process_set, name or None, op, prescale, postscale)
    return list(_native.wait(handle))


@custom_op("corro::allgather", mutates_args=())
def _allgather(tensor: torch.Tensor, set_id: int, name: str) -> torch.Tensor:
    return _eager.resized("allgather", tensor, process_set_by_id(set_id), name or None)


# An allgather whose number of rows is known: those that a reducescatter has dealt out.
@custom_op("corro::all_rows", mutates_args=())
def _all_rows(part: torch.Tensor, rows: int, set_id: int) -> torch.Tensor:
    return _eager.resized("allgather", part, process_set_by_id(set_id), None)


@custom_op("corro::own_rows", mutates_args=())
def _own_rows(gathered: torch.Tensor, rows: int, set_id: int) -> torch.Tensor:
    process_set = process_set_by_id(set_id)
    return _autograd.own_rows(gathered, gather_numbers([rows], None, process_set), process_set).clone()


@custom_op("corro::broadcast", mutates_args=())
def _broadcast(tensor: torch.Tensor, root_rank: int, set_id: int, name: str) -> torch.Tensor:
    return _eager.into_new("broadcast", tensor, process_set_by_id(set_id), name or None, Sum, 1.0, 1.0, root_rank)


@custom_op("corro::broadcast_", mutates_args=("tensor",))
def _broadcast_(tensor: torch.Tensor, root_rank: int, set_id: int, name: str) -> None:
    _eager.in_place("broadcast", tensor, process_set_by_id(set_id), name or None, Sum, 1.0, 1.0, root_rank)


@custom_op(
    "corro::alltoall",
    mutates_args=(),
    schema="(Tensor tensor, SymInt[] splits, SymInt set_id, str name) -> (Tensor, Tensor)",
)
def _alltoall(tensor: torch.Tensor, splits: list[int], set_id: int, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    process_set = process_set_by_id(set_id)
    numbers = alltoall_splits(splits, tensor.shape[0], set_size(process_set))
    return _eager.alltoall(tensor, numbers, None, process_set, name or None)


@custom_op("corro::alltoall_back", mutates_args=())
def _alltoall_back(grad: torch.Tensor, received: torch.Tensor, rows: int, set_id: int) -> torch.Tensor:
    back, _ = _eager.alltoall(grad, received.tolist(), None, process_set_by_id(set_id), None)
    return _autograd.pad_rows(back, rows)


@custom_op("corro::reducescatter", mutates_args=())
def _reducescatter(
    tensor: torch.Tensor, set_id: int, name: str, op: int, prescale: float, postscale: float
) -> torch.Tensor:
    return _eager.resized("reducescatter", tensor, process_set_by_id(set_id), name or None, op, prescale, postscale)


# What the results look like.


def _like(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _with_rows(tensor: torch.Tensor, rows: Any) -> torch.Tensor:
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _unknown_rows(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    return _with_rows(tensor, torch.library.get_ctx().new_dynamic_size())


def _fake_alltoall(tensor: torch.Tensor, splits: Any, set_id: int, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    members = set_size(process_set_by_id(set_id))
    return _unknown_rows(tensor), tensor.new_empty((members,), dtype=torch.int32, device="cpu")


_allreduce.register_fake(_like)
_allreduce_.register_fake(lambda *_: None)
_grouped_allreduce.register_fake(lambda tensors, *_: [_like(tensor) for tensor in tensors])
_allgather.register_fake(_unknown_rows)
_all_rows.register_fake(lambda part, rows, set_id: _with_rows(part, rows))
_own_rows.register_fake(lambda gathered, rows, set_id: _with_rows(gathered, rows))
_broadcast.register_fake(_like)
_broadcast_.register_fake(lambda *_: None)
_alltoall.register_fake(_fake_alltoall)
_alltoall_back.register_fake(lambda grad, received, rows, set_id: _with_rows(grad, rows))
_reducescatter.register_fake(
    lambda tensor, set_id, *_: _with_rows(tensor, _autograd.scattered_rows(tensor.shape[0], process_set_by_id(set_id)))
)


# Their gradients: the same rules as in `_autograd`, in terms of operators, so that backward graphs compile too.


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.arguments = inputs[1:]
    ctx.rows = inputs[0].shape[0] if isinstance(inputs[0], torch.Tensor) and inputs[0].dim() else None


def _keep_alltoall(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _keep(ctx, inputs, output)
    ctx.save_for_backward(output[1])


def _allreduce_backward(ctx: Any, grad: torch.Tensor) -> Any:
    set_id, _, *numbers = ctx.arguments
    return (torch.ops.corro.allreduce(grad.contiguous(), set_id, "", *numbers), None, None, None, None, None)


def _grouped_allreduce_backward(ctx: Any, grads: list[torch.Tensor]) -> Any:
    set_id, _, *numbers = ctx.arguments
    return (torch.ops.corro.grouped_allreduce(grads, set_id, "", *numbers), None, None, None, None, None)


def _allgather_backward(ctx: Any, grad: torch.Tensor) -> Any:
    set_id, _ = ctx.arguments
    reduced = torch.ops.corro.allreduce(grad.contiguous(), set_id, "", Average, 1.0, 1.0)
    return torch.ops.corro.own_rows(reduced, ctx.rows, set_id), None, None


def _broadcast_backward(ctx: Any, grad: torch.Tensor) -> Any:
    root_rank, set_id, _ = ctx.arguments
    reduced = torch.ops.corro.allreduce(grad.contiguous(), set_id, "", Average, 1.0, 1.0)
    return (reduced if _native.rank() == root_rank else torch.zeros_like(reduced)), None, None, None


def _alltoall_backward(ctx: Any, grad: torch.Tensor, _received: Any) -> Any:
    _, set_id, _ = ctx.arguments
    (received,) = ctx.saved_tensors
    return torch.ops.corro.alltoall_back(grad.contiguous(), received, ctx.rows, set_id), None, None, None


def _reducescatter_backward(ctx: Any, grad: torch.Tensor) -> Any:
    set_id, _, *numbers = ctx.arguments
    scaled = _autograd.scatter_gradient(grad, process_set_by_id(set_id), *numbers)
    return torch.ops.corro.all_rows(scaled.contiguous(), ctx.rows, set_id), None, None, None, None, None


_allreduce.register_autograd(_allreduce_backward, setup_context=_keep)
_grouped_allreduce.register_autograd(_grouped_allreduce_backward, setup_context=_keep)
_allgather.register_autograd(_allgather_backward, setup_context=_keep)
_broadcast.register_autograd(_broadcast_backward, setup_context=_keep)
_alltoall.register_autograd(_alltoall_backward, setup_context=_keep_alltoall)
_reducescatter.register_autograd(_reducescatter_backward, setup_context=_keep)
