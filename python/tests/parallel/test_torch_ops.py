"""Operations of `corro.torch` beyond the shared cases: gradients, compression, sparse and odd tensors."""

from types import SimpleNamespace

import pytest
import torch

import corro.torch as hvd
from corro._front.ops import Ops
from corro.torch import _tensors


def rank_tensor(*shape):
    return torch.full(shape, float(hvd.rank() + 1))


def total():
    return sum(range(1, hvd.size() + 1))


@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_gradient_of_allreduce(op):
    x = rank_tensor(3).requires_grad_()
    y = hvd.allreduce(x, op=getattr(hvd, op), prescale_factor=0.5)
    # The gradients of all ranks are reduced the same way.
    (y * (hvd.rank() + 1)).sum().backward()
    wanted = total() * 0.5 / (hvd.size() if op == "Average" else 1)
    torch.testing.assert_close(x.grad, torch.full((3,), wanted))


def test_gradient_of_grouped_allreduce():
    xs = [rank_tensor(2).requires_grad_(), rank_tensor(3).requires_grad_()]
    ys = hvd.grouped_allreduce(xs, op=hvd.Sum)
    sum(y.sum() for y in ys).backward()
    for x in xs:
        torch.testing.assert_close(x.grad, torch.full_like(x, float(hvd.size())))


@pytest.mark.parametrize("grouped", [False, True])
def test_gradient_of_allgather_is_the_average_of_the_own_rows(grouped):
    rows = hvd.rank() + 1
    x = torch.ones(rows, 2, requires_grad=True)
    y = hvd.grouped_allgather([x, x.detach()])[0] if grouped else hvd.allgather(x)
    weights = torch.arange(float(y.shape[0])).unsqueeze(1)
    (y * weights).sum().backward()
    start = sum(range(1, hvd.rank() + 1))
    torch.testing.assert_close(x.grad, weights[start : start + rows].expand(-1, 2))


def test_gradient_of_broadcast_belongs_to_the_root():
    x = rank_tensor(2).requires_grad_()
    (hvd.broadcast(x, 1) * (hvd.rank() + 1)).sum().backward()
    wanted = total() / hvd.size() if hvd.rank() == 1 else 0.0
    torch.testing.assert_close(x.grad, torch.full((2,), wanted))


def test_gradient_of_alltoall_goes_back():
    splits = torch.tensor([i + 1 for i in range(hvd.size())], dtype=torch.int32)
    x = torch.ones(int(splits.sum()) + 1, 2, requires_grad=True)
    y, received = hvd.alltoall(x, splits)
    assert received.dtype == torch.int32
    (y * (hvd.rank() + 1)).sum().backward()
    wanted = torch.cat([torch.full((i + 1, 2), float(i + 1)) for i in range(hvd.size())] + [torch.zeros(1, 2)])
    torch.testing.assert_close(x.grad, wanted)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_gradient_of_reducescatter(op, grouped):
    x = torch.ones(hvd.size() + 1, 2, requires_grad=True)
    op = getattr(hvd, op)
    y = hvd.grouped_reducescatter([x], op=op)[0] if grouped else hvd.reducescatter(x, op=op)
    (y * (hvd.rank() + 1)).sum().backward()
    rows = [2] + [1] * (hvd.size() - 1)
    factor = hvd.size() if op == hvd.Sum else 1
    wanted = torch.cat([torch.full((n, 2), float(r + 1) * factor) for r, n in enumerate(rows)])
    torch.testing.assert_close(x.grad, wanted)


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
def test_compression_keeps_the_dtype(compression):
    for dtype in (torch.float32, torch.float64, torch.float16):
        y = hvd.allreduce(rank_tensor(4).to(dtype), op=hvd.Sum, compression=compression)
        assert y.dtype == dtype
        torch.testing.assert_close(y, torch.full((4,), float(total()), dtype=dtype))
    assert hvd.allreduce(torch.ones(2, dtype=torch.int64), op=hvd.Sum, compression=compression).dtype == torch.int64


def test_tensors_that_are_not_contiguous():
    x = torch.arange(12.0).reshape(3, 4).t()
    assert not x.is_contiguous()
    torch.testing.assert_close(hvd.allreduce(x, op=hvd.Sum), x * hvd.size())
    kept = x.clone()
    assert hvd.allreduce_(x, op=hvd.Sum) is x
    torch.testing.assert_close(x, kept * hvd.size())
    y = torch.zeros(4, 6)[:, ::2]
    hvd.synchronize(hvd.allreduce_async_(y.add_(1), op=hvd.Sum))
    torch.testing.assert_close(y, torch.full((4, 3), float(hvd.size())))
    torch.testing.assert_close(hvd.allgather(kept[:, 0]), kept[:, 0].repeat(hvd.size()))
    a, b = hvd.grouped_allreduce([kept, kept.contiguous()], op=hvd.Sum)
    torch.testing.assert_close(a, b)


def test_bool_tensors():
    x = torch.tensor([hvd.rank() == 0, True, False])
    assert hvd.allreduce(x, op=hvd.Max).tolist() == [True, True, False]
    assert hvd.broadcast(x, 0).tolist() == [True, True, False]
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(x)


def test_dtypes_that_cannot_be_reduced():
    for x in (torch.ones(2, dtype=torch.complex64), torch.ones(2).to_sparse()):
        with pytest.raises(ValueError, match="not supported"):
            hvd.allreduce(x)


def test_sparse_allreduce():
    x = torch.sparse_coo_tensor([[0, hvd.rank()]], [1.0, 2.0], (hvd.size() + 1,))
    wait = hvd.sparse_allreduce_async(x, "sparse", hvd.Sum)
    wanted = hvd.allreduce(x.to_dense(), op=hvd.Sum)
    torch.testing.assert_close(wait().to_dense(), wanted)
    average = hvd.sparse_allreduce_async(x, "sparse", hvd.Average)()
    torch.testing.assert_close(average.to_dense(), wanted / hvd.size())


def test_alltoall_refuses_splits_of_another_kind():
    x = torch.ones(hvd.size())
    with pytest.raises(ValueError, match="int32"):
        hvd.alltoall(x, torch.ones(hvd.size(), dtype=torch.int64))
    with pytest.raises(ValueError, match="one-dimensional"):
        hvd.alltoall(x, torch.ones(hvd.size(), 1, dtype=torch.int32))
    output, received = hvd.synchronize(hvd.alltoall_async(x))
    assert received.tolist() == [1] * hvd.size()
    assert output.shape == x.shape


def test_allgather_of_a_scalar_is_an_index_error():
    with pytest.raises(IndexError):
        hvd.allgather(torch.tensor(1.0))


def test_results_are_ordinary_tensors():
    y = hvd.allgather(torch.ones(2, dtype=torch.bfloat16))
    y.resize_(1)
    z = hvd.allgather(rank_tensor(2)).requires_grad_()
    (z * z).sum().backward()
    assert z.grad is not None


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "broadcast", "grouped", "in place"])
def test_ranks_whose_tensors_live_on_different_devices(kind, monkeypatch):
    # What a rank with a GPU would say of its tensors.
    label = -1 if hvd.rank() == 0 else 0
    monkeypatch.setattr("corro.torch._tensors.device_number", lambda tensor: label)
    # Where the engine does not take a tensor as it is, as it takes none of a GPU.
    elsewhere = Ops(SimpleNamespace(**{**vars(_tensors), "place": lambda tensor: None}))
    for name, op in vars(elsewhere).items():
        monkeypatch.setattr(f"corro.torch._eager.{name}", op)
    call = {
        "allreduce": lambda x: hvd.allreduce(x, name="mixed"),
        "allgather": lambda x: hvd.allgather(x, name="mixed"),
        "broadcast": lambda x: hvd.broadcast(x, 0, name="mixed"),
        "grouped": lambda x: hvd.grouped_allreduce([x, x], name="mixed"),
        "in place": lambda x: hvd.allreduce_(x, name="mixed"),
    }[kind]
    with pytest.raises(
        hvd.HorovodInternalError, match=r"CPU/GPU device selection.*rank.*: (CPU|GPU); rank.*: (CPU|GPU)"
    ):
        call(torch.ones(3))
    monkeypatch.undo()
    assert call(torch.ones(3)) is not None
