"""Compressed gradients with `corro.torch`: what is asked for, what is remembered, and that models still learn.

Ranks of these jobs are on one host, so compression is told to work inside of it.
"""

import copy
import functools
import warnings

import pytest
import torch
from torch import nn
from training import model

import corro.torch as hvd
from corro._errors import HorovodInternalError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ALL = {
        "int8": hvd.Compression.int8(inside=True),
        "int8 by chance": hvd.Compression.int8(rounding="stochastic", inside=True),
        "int8 turned": hvd.Compression.int8(rotate=True, inside=True),
        "int4": hvd.Compression.int4(inside=True),
        "fp8": hvd.Compression.fp8(inside=True),
        "onebit": hvd.Compression.onebit(block=32, inside=True),
        "qsgd": hvd.Compression.qsgd(block=32, inside=True),
        "topk": hvd.Compression.topk(0.3, inside=True),
        "randomk": hvd.Compression.randomk(0.5, inside=True),
        "powersgd": hvd.Compression.powersgd(rank=1, min_rate=1, inside=True),
        "ef21": hvd.Compression.ef21(0.5, inside=True),
    }


def test_a_tensor_comes_out_near_its_mean():
    expected = torch.arange(1000.0) + sum(range(hvd.size())) / hvd.size()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        result = hvd.allreduce(
            (torch.arange(1000.0) + hvd.rank()).to(dtype), name=f"near {dtype}", compression=ALL["int8"]
        )
        assert result.dtype == dtype
        assert (result.double() - expected).abs().max() < 12
    exact = hvd.allreduce(torch.full((5,), float(hvd.rank())), name="plain", compression=hvd.Compression.int8())
    assert exact.tolist() == [(hvd.size() - 1) / 2] * 5, "on one host nothing is rounded"


def test_gradients_flow_through():
    x = torch.ones(64, requires_grad=True)
    hvd.allreduce(x, name="flow", op=hvd.Sum, compression=ALL["fp8"]).sum().backward()
    assert x.grad.tolist() == [float(hvd.size())] * 64


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="give the tensor a name"):
        hvd.allreduce(torch.ones(3), compression=hvd.Compression.int8())
    hvd.allreduce(torch.ones(3), compression=hvd.Compression.int8(feedback=False))
    with pytest.raises(Exception, match="multiple of 32"):
        hvd.Compression.int8(block=100)
    with pytest.raises(Exception, match="no setting called blok"):
        hvd.Compression.int8(blok=100)
    with pytest.warns(UserWarning, match="astray"):
        hvd.Compression.topk(feedback=False)
    with pytest.raises(Exception, match="floating-point"):
        hvd.allreduce(torch.ones(3, dtype=torch.int64), name="whole", op=hvd.Sum, compression=hvd.Compression.int8())


def test_ranks_that_differ_are_told():
    if hvd.size() == 1:
        pytest.skip("there is nobody to differ from")
    mine = hvd.Compression.int8() if hvd.rank() == 0 else hvd.Compression.onebit()
    with pytest.raises(HorovodInternalError, match=r"Mismatched compression.*rank"):
        hvd.allreduce(torch.ones(3), name="differs", compression=mine)


TEACHER = torch.randn(4, 3, generator=torch.Generator().manual_seed(5))


def loss_of(net, x):
    return nn.functional.mse_loss(net(x), torch.tanh(x @ TEACHER))


def train(compression, steps=60, **options):
    net = model(seed=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), compression=compression, **options)
    data = torch.Generator().manual_seed(hvd.rank())
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net, torch.randn(16, 4, generator=data)).backward()
        optimizer.step()
    return net, optimizer


def final_loss(net):
    with torch.no_grad():
        return loss_of(net, torch.randn(256, 4, generator=torch.Generator().manual_seed(99))).item()


@functools.cache
def plain_loss():
    return final_loss(train(hvd.Compression.none)[0])


@pytest.mark.parametrize("name", ALL)
def test_models_learn_and_stay_alike(name):
    plain = plain_loss()
    net, _ = train(ALL[name])
    assert final_loss(net) < 1.3 * plain + 0.02
    states = hvd.allgather_object(net.state_dict())
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=0, atol=0)


def test_names_choose():
    rules = {"*.bias": hvd.Compression.none, "0.*": ALL["onebit"], "*": ALL["int8"]}
    earlier = hvd.compression_report()
    before = {name: entry["calls"] for name, entry in earlier.items()}
    train(rules, steps=3)
    report = hvd.compression_report()
    if hvd.size() > 1:
        assert report["0.weight"]["compression"].startswith("onebit")
        assert report["0.weight"]["calls"] == before.get("0.weight", 0) + 3
        bytes_before = earlier.get("0.weight", {"plain_bytes": 0, "sent_bytes": 0})
        plain = report["0.weight"]["plain_bytes"] - bytes_before["plain_bytes"]
        assert plain > 2 * (report["0.weight"]["sent_bytes"] - bytes_before["sent_bytes"])
        assert {name for name in report if name.endswith(".bias")} == {
            name for name in before if name.endswith(".bias")
        }
        assert all(report[name]["calls"] == calls for name, calls in before.items() if name.endswith(".bias"))
    with pytest.raises(ValueError, match="by name"):
        train({"*": hvd.Compression.fp16})


def test_a_text_says_the_same():
    net, _ = train("onebit block=32 inside=yes", steps=3)
    same, _ = train(ALL["onebit"], steps=3)
    torch.testing.assert_close(net.state_dict(), same.state_dict(), rtol=0, atol=0)
    pair = hvd.grouped_allreduce([torch.ones(3), torch.ones(2)], name="pair", op=hvd.Sum, compression=ALL["int8"])
    torch.testing.assert_close(pair[0], torch.full((3,), float(hvd.size())), rtol=0.02, atol=0)
    with pytest.raises(ValueError, match="by the names of parameters"):
        hvd.allreduce(torch.ones(3), name="x", compression={"*": ALL["int8"]})


def test_optimizers_keep_what_they_owe_apart():
    """One after the other they begin anew; in turn, by the same names, they can't, and that is said."""
    first, _one = train(ALL["onebit"], steps=2)
    again, _other = train(ALL["onebit"], steps=2)
    torch.testing.assert_close(first.state_dict(), again.state_dict(), rtol=0, atol=0)
    with pytest.warns(UserWarning, match="two optimizers"):
        loss_of(first, torch.ones(2, 4)).backward()


def test_what_is_owed_is_saved_and_loaded():
    net, optimizer = train(ALL["onebit"], steps=5)
    state = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(net.state_dict())
    batches = [torch.randn(16, 4, generator=torch.Generator().manual_seed(10 * i + hvd.rank())) for i in range(4)]

    def go_on():
        for batch in batches:
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()
        return copy.deepcopy(net.state_dict())

    first = go_on()
    net.load_state_dict(weights)
    optimizer.load_state_dict(state)
    torch.testing.assert_close(go_on(), first, rtol=0, atol=0)
    if hvd.size() > 1:
        assert "corro_compression" in state
        net.load_state_dict(weights)
        optimizer.load_state_dict({k: v for k, v in state.items() if k != "corro_compression"})
        assert any(not torch.equal(a, b) for a, b in zip(go_on().values(), first.values(), strict=True))


def test_what_is_owed_follows_the_learning_rate():
    net = nn.Linear(8, 8, bias=False)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    named = [("rate.weight", net.weight)]
    optimizer = hvd.DistributedOptimizer(optimizer, named, compression=ALL["onebit"])

    def step():
        optimizer.zero_grad()
        (net.weight * torch.arange(64.0).reshape(8, 8)).sum().backward()

    step()
    optimizer.step()
    if hvd.size() == 1:
        return
    before = hvd.compression_report()["rate.weight"]["residual_norm"]
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer._reducer.way.follow_rate("rate.weight", net.weight)
    after = hvd.compression_report()["rate.weight"]["residual_norm"]
    assert after == pytest.approx(2 * before, rel=1e-5)


def test_not_a_number_shows_and_goes():
    tensor = torch.ones(500)
    if hvd.rank() == 0:
        tensor[7] = float("nan")
    first = hvd.allreduce(tensor, name="bad", compression=ALL["int8"])
    second = hvd.allreduce(torch.ones(500), name="bad", compression=ALL["int8"])
    assert first.isnan().any()
    assert second.isfinite().all()


class Largest(hvd.OwnCompressor):
    """The largest half of the values, as its user may write it."""

    def compress(self, values, state):
        kept = values.abs() >= values.abs().median()
        return torch.where(kept, values, torch.zeros_like(values))

    def decompress(self, code, state, shape):
        return code.reshape(shape)


class Sums(hvd.OwnCompressor):
    """Half precision, which can be added up."""

    combine = "sum"

    def compress(self, values, state):
        return values.bfloat16()

    def decompress(self, code, state, shape):
        return code.float()


@pytest.mark.parametrize("own", [Largest(), Sums()], ids=["gather", "sum"])
def test_compressors_of_users(own):
    plain = plain_loss()
    hvd.register_compressor("own", own)
    net, optimizer = train("own")
    assert final_loss(net) < 1.3 * plain + 0.02
    assert set(optimizer.state_dict()["corro_compression"]) == {name for name, _ in net.named_parameters()}
    states = hvd.allgather_object(net.state_dict())
    torch.testing.assert_close(states[-1], states[0], rtol=0, atol=0)
    wrong = type(own)()
    wrong.combine = "two_step"
    with pytest.raises(ValueError, match="combine must be"):
        hvd.register_compressor("wrong", wrong)


def test_hooks_of_torch():
    expected = train(hvd.Compression.none, steps=5)[0].state_dict()
    seen = []

    def hook(state, bucket):
        state.append((bucket.index(), bucket.is_last()))
        assert bucket.buffer().numel() == bucket.parameters()[0].numel() == bucket.gradients()[0].numel()
        return hvd.allreduce_future(bucket.buffer(), f"hook {bucket.index()}").then(lambda future: future.value())

    net = model(seed=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
    optimizer.register_comm_hook(seen, hook)
    data = torch.Generator().manual_seed(hvd.rank())
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(net, torch.randn(16, 4, generator=data)).backward()
        optimizer.step()
    torch.testing.assert_close(dict(net.state_dict()), dict(expected), rtol=1e-5, atol=1e-6)
    assert {index for index, _ in seen} == {0, 1, 2, 3}
    assert all(last == (index == 3) for index, last in seen)


def test_onebit_adam_learns():
    def run(make):
        net = model(seed=1)
        optimizer = make(net)
        data = torch.Generator().manual_seed(hvd.rank())
        for _ in range(150):
            optimizer.zero_grad()
            loss_of(net, torch.randn(16, 4, generator=data)).backward()
            optimizer.step()
        states = hvd.allgather_object(net.state_dict())
        torch.testing.assert_close(states[-1], states[0], rtol=0, atol=0)
        return final_loss(net)

    def adam(net):
        return hvd.DistributedOptimizer(torch.optim.Adam(net.parameters(), lr=0.01), net.named_parameters())

    plain = run(adam)
    exact = run(lambda net: hvd.OneBitAdam(net.named_parameters(), lr=0.01, freeze=150))
    assert exact == pytest.approx(plain, rel=0.02), "before it freezes it is Adam"
    coded = run(
        lambda net: hvd.OneBitAdam(
            net.named_parameters(), lr=0.01, freeze=50, compression=hvd.Compression.onebit(block=32, inside=True)
        )
    )
    assert coded < 1.5 * plain + 0.02


def test_one_bit_adam_takes_no_step_that_adam_would_not():
    weight = torch.nn.Parameter(torch.zeros(64))
    code = hvd.Compression.onebit(block=32, inside=True)
    optimizer = hvd.OneBitAdam([("weight", weight)], lr=0.01, freeze=5, compression=code)
    for _ in range(20):
        before = weight.detach().clone()
        # One value of the block has next to no gradient; its sign will have the size of the others.
        weight.grad = torch.ones(64)
        weight.grad[0] = 1e-12
        optimizer.step()
        largest = (weight.detach() - before).abs().max().item()
        assert largest <= 0.01 * (1 - 0.9) / (1 - 0.999) ** 0.5 * 1.001


def test_auto_decides_alike_everywhere(capfd):
    net, _ = train("auto", steps=3)
    states = hvd.allgather_object(net.state_dict())
    torch.testing.assert_close(states[-1], states[0], rtol=0, atol=0)
    said = capfd.readouterr().err
    assert ("all ranks are on one host" in said) == (hvd.rank() == 0)
    train(hvd.Compression.auto(among=[ALL["int8"]]), steps=3)
    said = capfd.readouterr().err
    if hvd.rank() == 0 and hvd.size() > 1:
        assert "4 MiB take: none" in said
        assert "ms" in said
