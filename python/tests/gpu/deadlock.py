"""Ranks that wait for each other's tensors are told so at once, also after a backward pass on a GPU.

Torch runs such a pass on threads of its own, which never end, and the driver has threads as well. Both ranks of a job run
this.
"""

from __future__ import annotations

import time

import torch
from gpu import DEVICE

import corro.torch as hvd


def main() -> None:
    hvd.init()
    me = hvd.rank()
    model = torch.nn.Linear(4, 4).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=DEVICE)).sum().backward()
        optimizer.step()

    # Nothing is wrong: one comes late, and the other waits for it.
    if me == 0:
        time.sleep(1.5)
    assert hvd.allreduce(torch.ones(2, device=DEVICE), op=hvd.Sum, name="late").tolist() == [2.0, 2.0]

    began = time.monotonic()
    try:
        hvd.allreduce(torch.ones(2, device=DEVICE), name="ab"[me])
    except Exception as error:
        text = str(error)
        assert "deadlock" in text, text
        assert "a', which rank 1 has not submitted" in text, text
    else:
        raise AssertionError("it never ends")
    told = time.monotonic() - began
    print(f"rank {me}: told after {told:.2f} s", flush=True)
    assert told < 20, "long before CORRO_TIMEOUT"


if __name__ == "__main__":
    main()
