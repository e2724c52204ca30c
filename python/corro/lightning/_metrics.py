"""Metrics of `torchmetrics` over all ranks: they ask torch.distributed for the others, which is not there."""

from __future__ import annotations

import sys

import torch

import corro.torch as hvd
from corro._front import basics


def connect(model: torch.nn.Module) -> None:
    """Has the metrics of a model gather their state from all ranks, unless the program has said how they should."""
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None:
        return
    for metric in model.modules():
        if isinstance(metric, torchmetrics.Metric) and metric.dist_sync_fn is None:
            metric.dist_sync_fn = gather
            metric.distributed_available_fn = _available


def gather(value: torch.Tensor, group: object = None) -> list[torch.Tensor]:
    """The tensors of all ranks, which may differ in size but not in the number of dimensions."""
    value = value.contiguous()
    shapes = hvd.allgather(torch.tensor([list(value.shape)], dtype=torch.int64)).tolist()
    everything = hvd.allgather(value.reshape(-1))
    sizes = [torch.Size(shape) for shape in shapes]
    parts = everything.split([size.numel() for size in sizes])
    return [part.reshape(size) for part, size in zip(parts, sizes, strict=True)]


def _available() -> bool:
    return basics.is_initialized() and basics.size() > 1
