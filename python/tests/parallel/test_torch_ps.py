"""Parameter servers: stores of arrays, and training by them. Runs on all ranks of a job."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import corro
import corro.torch as hvd
from corro import ps


def weights(steps: int, seed: int, delays: bool, **options: object) -> list[torch.Tensor]:
    """A small model's after some steps of training on data that each rank has for itself."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.Tanh(), torch.nn.Linear(33, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    data = torch.Generator().manual_seed(100 * seed + hvd.rank())
    waits = random.Random(hvd.rank())
    for _ in range(steps):
        if delays:
            time.sleep(waits.random() * 0.01)
        optimizer.zero_grad()
        model(torch.randn(16, 20, generator=data)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_without_staleness_weights_have_the_bits_of_an_allreduce() -> None:
    by_allreduce = weights(50, 3, delays=False)
    by_servers = weights(50, 3, delays=True, mode="ps", staleness=0)
    for ours, theirs in zip(by_servers, by_allreduce, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("staleness", [1, 5, None])
def test_ranks_may_be_apart_and_all_still_learn(staleness: int | None) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 1)
    target = torch.arange(1.0, 6.0)
    plain = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), mode="ps", staleness=staleness)
    data = torch.Generator().manual_seed(hvd.rank())
    for _ in range(300):
        x = torch.randn(32, 5, generator=data)
        optimizer.zero_grad()
        (model(x)[:, 0] - x @ target).square().mean().backward()
        optimizer.step()
    optimizer.store.barrier()
    assert (model.weight[0] - target).abs().max() < 0.05
    optimizer.store.close()


def test_optimizers_of_servers_are_those_of_torch() -> None:
    makers = [
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True), ps.SGD(0.1, 0.9, nesterov=True)),
        (lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1), ps.Adam(0.01, weight_decay=0.1)),
        (lambda p: torch.optim.AdamW(p, 0.01), ps.AdamW(0.01)),
        (lambda p: torch.optim.Adagrad(p, 0.1), ps.Adagrad(0.1)),
    ]
    for make, served in makers:
        with ps.Store() as store:
            store.set_optimizer(served)
            start = torch.randn(300, generator=torch.Generator().manual_seed(1))
            store.init("w", start)
            w = start.double().requires_grad_()
            optimizer = make([w])
            for step in range(100):
                gradients = [
                    torch.randn(300, generator=torch.Generator().manual_seed(step * 10 + r)) for r in range(hvd.size())
                ]
                w.grad = torch.stack(gradients).double().mean(0)
                optimizer.step()
                got = store.pushpull("w", gradients[hvd.rank()])
            assert torch.allclose(got.double(), w.detach(), rtol=1e-5, atol=1e-5), served


def test_the_right_optimizer_is_found_or_refused() -> None:
    model = torch.nn.Linear(2, 1)

    def distribute(optimizer: torch.optim.Optimizer, **options: object) -> None:
        hvd.DistributedOptimizer(optimizer, model.named_parameters(), mode="ps", **options)

    with pytest.raises(ValueError, match="no RMSprop"):
        distribute(torch.optim.RMSprop(model.parameters()), staleness=2)
    with pytest.raises(ValueError, match="amsgrad"):
        distribute(torch.optim.Adam(model.parameters(), amsgrad=True), staleness=2)
    with pytest.raises(ValueError, match='mode is "allreduce" or "ps"'):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), mode="ring")
    with pytest.raises(ValueError, match="staleness must be 0 or more"):
        distribute(torch.optim.SGD(model.parameters(), 0.1), staleness=-1)
    with pytest.raises(ValueError, match="powersgd"):
        distribute(torch.optim.SGD(model.parameters(), 0.1), compression=hvd.Compression.powersgd(rank=1))
    with pytest.raises(ValueError, match="fp16, bf16 or int8"):
        distribute(torch.optim.SGD(model.parameters(), 0.1), compression="auto")


CODES = [hvd.Compression.fp16, hvd.Compression.int8(block=32), {"*.weight": hvd.Compression.int8(block=32)}]


@pytest.mark.parametrize("compression", CODES, ids=["fp16", "int8", "by name"])
@pytest.mark.parametrize("staleness", [0, 1])
def test_fewer_bytes(compression: object, staleness: int) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    plain = torch.optim.SGD(model.parameters(), lr=0.02)
    options = {"mode": "ps", "staleness": staleness, "compression": compression}
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **options)  # type: ignore[arg-type]
    data = torch.Generator().manual_seed(hvd.rank())
    losses = []
    for _ in range(60):
        x = torch.randn(64, 64, generator=data)
        optimizer.zero_grad()
        loss = (model(x)[:, 0] - x.sum(1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    store = optimizer.store if staleness else optimizer._reducer.way.store
    sent = store.stats()["bytes_sent"]
    # Weights and biases of both layers, sixty times; the first values once, and some words.
    whole = 60 * 4 * (64 * 64 + 64 + 64 + 1)
    assert sent < whole * (0.62 if compression is hvd.Compression.fp16 else 0.42)
    assert losses[-1] < 0.2 * losses[0]
    store.barrier()


def test_ones() -> None:
    """Every push is a vector of ones: what is read tells how many pushes are in it."""
    n = hvd.size()
    for bound in (0, 2):
        with ps.Store(consistency=ps.SSP(bound)) as store:
            store.init("ones", np.zeros(1000, np.float32))
            for clock in range(1, 21):
                if random.random() < 0.1:
                    time.sleep(0.01)
                store.push("ones", np.ones(1000, np.float32))
                store.clock()
                value = store.pull("ones")
                assert (value == value[0]).all()
                least, most = clock + (n - 1) * max(0, clock - bound), clock + (n - 1) * (clock + bound + 1)
                assert least <= value[0] <= most
            store.barrier()
            assert store.pull("ones")[0] == 20 * n


def test_rows(tmp_path: Path) -> None:
    with ps.Store() as store:
        store.set_optimizer(ps.RowAdagrad(lr=1.0, eps=0.0))
        store.init("table", torch.arange(40.0).view(20, 2), rows=True)
        store.push_rows("table", [3, 3, hvd.rank()], torch.ones(3, 2))
        got = store.pull_rows("table", torch.tensor([19, 3]))
        assert got[0].tolist() == [38.0, 39.0]
        # Adagrad's first step is as long as the rate, if the gradient of a row is applied at once.
        assert torch.allclose(got[1], torch.tensor([5.0, 6.0]))
        with pytest.raises(ValueError, match=rf"row 20 of \"table\" on worker {hvd.rank()}"):
            store.pull_rows("table", [20])
        with pytest.raises(ValueError, match="row"):
            store.pull_rows("table", [-1])
        with pytest.raises(ValueError, match="integers"):
            store.pull_rows("table", [0.5])
        folder = hvd.broadcast_object(str(tmp_path))
        store.save(folder)
        before = store.pull("table")
        store.push_rows("table", [5], torch.ones(1, 2))
        assert not torch.equal(store.pull("table"), before)
        store.load(folder)
        assert torch.equal(store.pull("table"), before)


def test_what_is_wrong_is_explained() -> None:
    with ps.Store() as store:
        store.init("x", np.zeros((2, 3), np.float32))
        with pytest.raises(ValueError, match=r"'x' is float32 of shape \(2, 3\)"):
            store.push("x", np.zeros((3, 2), np.float32))
        with pytest.raises(ValueError, match="call init first"):
            store.push("y", np.zeros(1, np.float32))
        with pytest.raises(ValueError, match="corro run --servers"):
            ps.Store(servers="spare")
        with pytest.raises(ValueError, match="sgd has no"):
            store._client.set_optimizer("sgd", [("beta1", 0.1)])
        stats = store.stats()
        assert stats["lost_servers"] == []
        assert stats["bytes_sent"] > 0
        assert sum(server["keys"] for server in stats["servers"]) == 1
    assert corro.is_initialized()
