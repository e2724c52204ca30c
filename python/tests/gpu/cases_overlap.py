"""Gradients travel while backward still makes others, and backward's thread waits for none of them until its end."""

from __future__ import annotations

from unittest import mock

import torch
from gpu import DEVICE, ON_GPU, PLANE
from torch import nn
from torch.profiler import ProfilerActivity, profile

import corro.torch as hvd
from corro.torch import _reducer

LAYERS = 12
WIDTH = 2048


def _training_step():
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1e-6), net.named_parameters())
    generator = torch.Generator().manual_seed(hvd.rank())
    rows = torch.randn(WIDTH, WIDTH, generator=generator).to(DEVICE)

    def step():
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()

    for _ in range(10):
        step()
    return step


def test_backward_waits_for_nothing_before_its_end():
    step = _training_step()
    before_the_end, submitted = [], []
    running = True
    wait, end, submit = _reducer._native.wait, _reducer.Reducer.end_of_backward, _reducer.Reducer._submit_group

    def noted_wait(handle):
        if running:
            before_the_end.append(handle)
        return wait(handle)

    def noted_end(reducer):
        nonlocal running
        running = False
        return end(reducer)

    def noted_submit(reducer, group, rider=None):
        if running:
            submitted.append(group)
        return submit(reducer, group, rider)

    with (
        mock.patch.object(_reducer._native, "wait", noted_wait),
        mock.patch.object(_reducer.Reducer, "end_of_backward", noted_end),
        mock.patch.object(_reducer.Reducer, "_submit_group", noted_submit),
    ):
        for _ in range(5):
            running = True
            step()
    assert before_the_end == []
    # In every step all groups but the last, which goes with the end of backward.
    assert len(submitted) >= 5, "nothing was submitted before the end of backward"


def test_the_trace_shows_collectives_during_backward():
    if not ON_GPU or PLANE:
        # Only the kernels of `cuda-ipc` have a name of ours.
        return
    step = _training_step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    kernels = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    ours = [e for e in kernels if "combine" in e.name]
    products = [
        e for e in kernels if "gemm" in e.name.lower() or "cutlass" in e.name.lower() or "nvjet" in e.name.lower()
    ]
    assert ours, sorted({e.name for e in kernels})
    assert products, sorted({e.name for e in kernels})
    last = max(e.time_range.end for e in products)
    during = [e for e in ours if e.time_range.start < last]
    # The last group of the last of three steps has nothing left to hide behind.
    assert len(during) >= len(ours) / 2, f"{len(during)} of {len(ours)} kernels began before backward had ended"
    beside = sum(
        any(p.time_range.start < e.time_range.end and e.time_range.start < p.time_range.end for p in products)
        for e in ours
    )
    if hvd.rank() == 0:
        print(f"    {len(ours)} kernels of ours in 3 steps, {beside} while a product of backward ran", flush=True)
    # Which rank's kernels come to run beside which of another's is the GPU's choice.
    assert sum(hvd.allgather_object(beside)) > 0
