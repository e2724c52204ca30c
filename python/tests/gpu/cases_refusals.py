"""What can't be done fails on all ranks, and says who has what."""

from __future__ import annotations

import torch
from gpu import DEVICE, ON_GPU

import corro.torch as hvd


def refused(call, *words):
    try:
        call()
    except hvd.HorovodInternalError as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError("nothing was refused")


def test_ranks_on_different_devices_are_told_and_may_go_on():
    if not ON_GPU:
        return
    where = DEVICE if hvd.rank() == 0 else "cpu"
    calls = (hvd.allreduce, hvd.allgather, hvd.reducescatter, lambda x, name: hvd.broadcast(x, 0, name=name))
    for number, call in enumerate(calls):
        x = torch.ones(4 * hvd.size(), device=where)
        refused(lambda call=call, x=x, number=number: call(x, name=f"mixed{number}"), "CPU/GPU device selection")
    assert hvd.allreduce(torch.ones(4, device=DEVICE), name="mixed0").tolist() == [1.0] * 4


def test_different_shapes_and_types_are_refused():
    refused(lambda: hvd.allreduce(torch.ones(3 + hvd.rank(), device=DEVICE), name="shapes"), "shape")
    dtype = torch.float32 if hvd.rank() == 0 else torch.float64
    refused(lambda: hvd.allreduce(torch.ones(3, device=DEVICE, dtype=dtype), name="types"), "type")
    assert hvd.allreduce(torch.ones(4, device=DEVICE), name="shapes").tolist() == [1.0] * 4
