"""Gradients that are torch tensors. Keras computes all of them before it hands them over, so they go as one group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import corro.torch as hvd
from corro._errors import HorovodInternalError
from corro._front.process_sets import ProcessSet
from corro._keras.watching import LoopWatch
from corro.torch.compression import Compression

__all__ = ["Compression"]


def grouped_allreduce(
    tensors: list[Any],
    name: str,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any,
    process_set: ProcessSet,
) -> list[Any]:
    with torch.no_grad():
        return hvd.grouped_allreduce(
            tensors,
            name=name,
            compression=compression,
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )


def allreduce_sparse(tensor: Any, name: str, op: int, compression: Any, process_set: ProcessSet) -> Any:
    return hvd.sparse_allreduce_async(tensor, name, op, process_set)()


def is_sparse(tensor: Any) -> bool:
    return bool(tensor.is_sparse)


def densify(tensor: Any) -> Any:
    return tensor.to_dense()


def scale(tensor: Any, factor: float) -> Any:
    return tensor * factor


def as_number(truth: Any) -> Any:
    return torch.as_tensor(truth).to(torch.int32)


def only_if(condition: Any, change: Callable[[list[Any]], list[Any]], tensors: list[Any]) -> list[Any]:
    # Keras has looked at the condition already: without a compiled loop it is an ordinary `if`.
    return change(tensors)


def jit_problem() -> str:
    return ""


def outside(function: Callable[[list[Any]], list[Any]], tensors: list[Any], results: int) -> list[Any]:
    arrays = [torch.as_tensor(tensor).detach().cpu().numpy() for tensor in tensors]
    made = zip(function(arrays), tensors[:results], strict=True)
    return [torch.from_numpy(array).to(tensor.device) for array, tensor in made]


def outside_problem() -> str:
    return ""


class _LookUp(torch.autograd.Function):
    """Rows of a table at servers."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, table: Any, ids: torch.Tensor) -> torch.Tensor:
        ctx.table, ctx.ids = table, ids.detach().cpu().numpy()
        return torch.from_numpy(table.pull(ctx.ids)).to(anchor.device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.table.push(ctx.ids, gradients[0].detach().cpu().numpy())
        return torch.zeros((), device=gradients[0].device), None, None


def look_up(table: Any, anchor: Any, ids: Any) -> Any:
    return _LookUp.apply(anchor, table, ids)


def watch(process_set: ProcessSet, name: str) -> LoopWatch:
    return LoopWatch(process_set, name, lambda: not torch.compiler.is_compiling())


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # The step is compiled in two parts, before and after: else torch tries to read what this calls, and warns.
    return torch.compiler.disable(function)


def internal_error(error: BaseException) -> str | None:
    return str(error) if isinstance(error, HorovodInternalError) else None
