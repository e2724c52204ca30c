"""Operations of `corro.torch` inside `torch.compile`. On two ranks only: what the compiler imports takes long."""

import pytest
import torch

import corro.torch as hvd


def rank_tensor(*shape):
    return torch.full(shape, float(hvd.rank() + 1))


COMPILED = {
    "allreduce": lambda x: hvd.allreduce(x * 2, op=hvd.Sum, name="compiled"),
    "grouped_allreduce": lambda x: hvd.grouped_allreduce([x * 2, x], op=hvd.Sum)[0],
    "broadcast": lambda x: hvd.broadcast(x * 2, 0),
    "reducescatter": lambda x: hvd.reducescatter(x * 2, op=hvd.Sum),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_as_one_graph(name):
    torch._dynamo.reset()
    function = COMPILED[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    results = []
    for f in (function, compiled):
        x = rank_tensor(hvd.size(), 2).requires_grad_()
        y = f(x)
        y.sum().backward()
        results.append((y.detach(), x.grad))
    torch.testing.assert_close(results[0], results[1])


def test_compiled_in_place_and_with_unknown_rows():
    torch._dynamo.reset()

    def in_place(x):
        y = x + 1
        hvd.allreduce_(y, op=hvd.Sum)
        return y * 2

    compiled = torch.compile(in_place, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(rank_tensor(3)), in_place(rank_tensor(3)))

    def gather(x):
        return hvd.allgather(x * 2).sum() + hvd.alltoall(x).sum()

    x = rank_tensor(hvd.size())
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.testing.assert_close(torch.compile(gather, fullgraph=True, backend="aot_eager")(x), gather(x))
