"""Whatever memory and stream a tensor comes from."""

from __future__ import annotations

import os

import torch
from each import each
from gpu import DEVICE, ON_GPU, everyone, numbers, reduced, same

import corro.torch as hvd


@each(dtype=[torch.float32, torch.bfloat16])
def test_tensors_that_are_not_contiguous(dtype):
    whole = numbers(dtype, 600, 700).to(DEVICE)
    wanted = reduced(hvd.Sum, everyone(dtype, 600, 700))
    same(hvd.allreduce(whole.t(), op=hvd.Sum), wanted.t())
    same(hvd.allreduce(whole[::2, 1::3], op=hvd.Sum), wanted[::2, 1::3])
    part = whole[:, 5]
    hvd.allreduce_(part, op=hvd.Sum)
    same(whole[:, 5], wanted[:, 5])
    same(whole[:, 4], numbers(dtype, 600, 700)[:, 4])
    same(
        hvd.allgather(numbers(dtype, 600, 700).to(DEVICE)[::3]), torch.cat([x[::3] for x in everyone(dtype, 600, 700)])
    )


def test_tensors_that_begin_anywhere():
    for offset in (1, 3, 17):
        for length in (100, 400_000):
            base = numbers(torch.float32, length + offset).to(DEVICE)
            wanted = reduced(hvd.Sum, everyone(torch.float32, length + offset))
            same(hvd.allreduce(base[offset:], op=hvd.Sum), wanted[offset:])
            hvd.allreduce_(base[offset:], op=hvd.Sum)
            same(base[offset:], wanted[offset:])
            same(base[:offset], numbers(torch.float32, length + offset)[:offset])


def test_streams_of_the_program():
    """What a stream is still computing is waited for; what uses the result waits for it; on several streams at once."""
    if not ON_GPU:
        return
    streams = [torch.cuda.Stream() for _ in range(3)]
    found = []
    for step in range(10):
        stream = streams[step % 3]
        with torch.cuda.stream(stream):
            x = torch.zeros(500_000 if step % 2 else 100, device=DEVICE)
            torch.cuda._sleep(20_000_000)
            x += hvd.rank() + step
            y = hvd.allreduce(x, op=hvd.Sum, name=f"stream{step}")
            found.append((stream, y * 2))
    for step, (stream, y) in enumerate(found):
        torch.cuda.current_stream().wait_stream(stream)
        total = 2.0 * sum(rank + step for rank in range(hvd.size()))
        assert float(y.min()) == float(y.max()) == total, (step, float(y.min()), float(y.max()), total)


def test_an_input_may_be_overwritten_after_the_result_was_waited_for():
    x = torch.ones(300_000, device=DEVICE)
    for step in range(20):
        y = hvd.allreduce(x, op=hvd.Sum, name="overwritten")
        x.fill_(float(step))
        wanted = float(hvd.size() * (1 if step == 0 else step - 1))
        assert float(y[0]) == float(y[-1]) == wanted, (step, float(y[0]), wanted)


def test_memory_is_given_back():
    if not ON_GPU:
        return
    for _ in range(3):
        hvd.allreduce(torch.ones(4_000_000, device=DEVICE), op=hvd.Sum, name="given back")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        hvd.allreduce(torch.ones(4_000_000, device=DEVICE), op=hvd.Sum, name="given back")
    torch.cuda.synchronize()
    # The engine may hold what its last batches used until it looks again.
    hvd.allreduce(torch.ones(1, device=DEVICE), op=hvd.Sum, name="last")
    held = torch.cuda.memory_allocated() - before
    assert held <= 3 * 16_000_000, f"{held} bytes more than before"


def test_expandable_segments():
    """Memory that other processes can't map. `make gpu` runs all cases in it as well; here it is made sure that it does."""
    if ON_GPU and "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        snapshot = torch.cuda.memory_snapshot()
        torch.ones(30_000_000, device=DEVICE)
        assert any(segment.get("is_expandable") for segment in [*snapshot, *torch.cuda.memory_snapshot()])
    large = numbers(torch.float32, 5_000_000).to(DEVICE)
    same(hvd.allreduce(large, op=hvd.Sum), reduced(hvd.Sum, everyone(torch.float32, 5_000_000)))


def test_tensors_of_many_sizes_allocated_and_freed():
    """A peer's memory that is freed and allocated anew is another one, at the same address perhaps."""
    for step in range(30):
        length = 300_000 + 100_000 * (step * 7 % 11)
        x = torch.full((length,), float(step + hvd.rank()), device=DEVICE)
        wanted = float(sum(step + rank for rank in range(hvd.size())))
        y = hvd.allreduce(x, op=hvd.Sum, name="resized/" + str(length))
        assert float(y.min()) == float(y.max()) == wanted
        del x, y
        if ON_GPU and step % 5 == 4:
            torch.cuda.empty_cache()


@each(how=["shrunk", "grown", "given back"], kind=["in place", "new", "gathered", "grouped"])
def test_a_storage_that_is_resized_in_flight_is_noticed(how, kind):
    """torch gives the memory to somebody else, while other ranks may read and write it."""
    if not ON_GPU:
        return
    x = torch.ones(1_000_000, device=DEVICE)
    name = f"resized in flight {how} {kind}"
    handle = {
        "in place": lambda: hvd.allreduce_async_(x, op=hvd.Sum, name=name),
        "new": lambda: hvd.allreduce_async(x, op=hvd.Sum, name=name),
        "gathered": lambda: hvd.allgather_async(x, name=name),
        "grouped": lambda: hvd.grouped_allreduce_async_([x, x[:100]], op=hvd.Sum, name=name),
    }[kind]()
    x.untyped_storage().resize_({"shrunk": 16, "grown": 8_000_000, "given back": 0}[how])
    try:
        hvd.synchronize(handle)
        why = "nobody noticed"
    except RuntimeError as error:
        why = str(error)
    assert "resized while an operation on it was in flight" in why, why
    # The tensor that was given other memory, and an operation after it, are as good as any.
    y = torch.ones(1_000_000, device=DEVICE)
    other = torch.zeros(5, device=DEVICE)
    handle = hvd.allreduce_async_(y, op=hvd.Sum, name=f"{name}, other data")
    kept, y.data = y.data, other
    hvd.synchronize(handle)
    assert float(kept[0]) == float(kept[-1]) == hvd.size()
