"""Mistakes that otherwise only show as a bad model are named; correct training is left alone."""

import warnings

import pytest
import torch
from torch import nn
from training import loss_of, model

import corro.torch as hvd
from corro._front.checks import TrainingMistake


def distributed(net, lr=0.1, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=lr), net.named_parameters(), **options)


def said_by(train):
    """The warnings of a training, gathered from all ranks."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    here = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    return [text for texts in hvd.allgather_object(here) for text in texts]


def steps(net, optimizer, count, data=None, between=lambda step: None):
    for step in range(count):
        optimizer.zero_grad()
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step * 100 + (data or hvd.rank)()))
        net(x).square().mean().backward()
        between(step)
        optimizer.step()


@pytest.mark.parametrize("level", ["0", "1", "2"])
@pytest.mark.parametrize("options", [{}, {"op": hvd.Sum}, {"compression": hvd.Compression.fp16}], ids=str)
def test_nothing_is_said_of_correct_training(monkeypatch, level, options):
    monkeypatch.setenv("CORRO_CHECKS", level)
    net = model(seed=hvd.rank())
    optimizer = distributed(net, **options)
    hvd.broadcast_parameters(net.state_dict(), 0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)

    def train():
        for _ in range(4):
            steps(net, optimizer, 20)
            scheduler.step()

    assert said_by(train) == []


def test_parameters_that_were_not_broadcast():
    net = model(seed=hvd.rank())
    optimizer = distributed(net)
    (text,) = said_by(lambda: steps(net, optimizer, 5))
    assert "parameter 0.bias is [" in text
    assert "on rank 0" in text
    assert "broadcast_parameters" in text
    assert "CORRO_CHECKS=0" in text


def test_models_that_differ():
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1 + (hvd.rank() == 1)))
    hvd.broadcast_parameters(net[0].state_dict(), 0)
    optimizer = distributed(net)
    with pytest.raises(TrainingMistake, match=r"the model's 1.bias is float32 \[\d\] on rank") as mistake:
        steps(net, optimizer, 1)
    assert "float32 [2] on rank 1" in str(mistake.value)


def test_learning_rates_that_differ():
    net = model()
    optimizer = distributed(net, lr=0.1 * (1 + hvd.rank()))
    said = said_by(lambda: steps(net, optimizer, 5))
    assert "the learning rate of group 0 is 0." in said[0]
    assert "on rank 1" in said[0]


def test_adasum_is_watched_as_well():
    net = model()
    optimizer = distributed(net, lr=0.1 * (1 + hvd.rank()), op=hvd.Adasum)
    said = said_by(lambda: steps(net, optimizer, 3))
    assert "the learning rate of group 0 is 0." in said[0]
    right = model()
    optimizer = distributed(right, op=hvd.Adasum)
    assert said_by(lambda: steps(right, optimizer, 9)) == []


def test_a_rate_that_comes_to_differ():
    net = model()
    optimizer = distributed(net)

    def between(step):
        if step == 5 and hvd.rank() == 1:
            optimizer.param_groups[0]["lr"] = 0.05

    said = said_by(lambda: steps(net, optimizer, 10, between=between))
    assert any("the learning rate of group 0 is " in text and "0.05 on rank 1" in text for text in said)


def test_a_step_that_one_rank_leaves_out():
    net = model()
    optimizer = distributed(net)

    def train():
        for step in range(8):
            optimizer.zero_grad()
            loss_of(net, hvd.rank()).backward()
            # "The loss looks bad, I skip this one": every rank has the same gradients, so all must.
            if step != 3 or hvd.rank() != 1:
                optimizer.step()

    said = said_by(train)
    assert any("the number of steps taken is " in text and "6 on rank 1" in text for text in said)


def test_a_checkpoint_that_one_rank_has_loaded():
    net = model()
    base = torch.optim.Adam(net.parameters())
    if hvd.rank() == 0:
        alone = model()
        other = torch.optim.Adam(alone.parameters())
        loss_of(alone, 0).backward()
        other.step()
        base.load_state_dict(other.state_dict())
    optimizer = hvd.DistributedOptimizer(base, net.named_parameters())
    said = said_by(lambda: steps(net, optimizer, 3))
    assert any("the number of steps in the optimizer's state is " in text and "1 on rank 0" in text for text in said)


def test_parameters_that_one_rank_changes():
    net = model()
    optimizer = distributed(net)

    def between(step):
        if step == 2 and hvd.rank() == 1:
            for p in net.parameters():
                p.grad.mul_(0.5)

    (text,) = said_by(lambda: steps(net, optimizer, 5, between=between))
    assert "parameter " in text
    assert "on rank 1" in text


def test_ranks_on_the_same_data():
    net = model()
    optimizer = distributed(net)
    (text,) = said_by(lambda: steps(net, optimizer, 3, data=lambda: 0))
    assert "same data" in text
    assert "ranks 0, 1" in text


def test_a_first_batch_that_is_the_same_is_no_mistake():
    net = model()
    optimizer = distributed(net)

    def train():
        steps(net, optimizer, 1, data=lambda: 0)
        steps(net, optimizer, 4)

    assert said_by(train) == []


def test_all_checks_raise(monkeypatch):
    monkeypatch.setenv("CORRO_CHECKS", "2")
    net = model(seed=hvd.rank())
    optimizer = distributed(net)
    with pytest.raises(TrainingMistake, match="broadcast_parameters"):
        steps(net, optimizer, 1)
    optimizer.load_state_dict(optimizer.state_dict())


def test_ranks_of_a_set_and_parameters_of_one_rank_are_their_own_business():
    some = hvd.add_process_set([0])
    net = model(seed=hvd.rank())
    optimizer = distributed(net, process_set=some)
    local = model(seed=hvd.rank())
    own = torch.optim.SGD(local.parameters(), lr=0.1 * (1 + hvd.rank()))

    def train():
        steps(net, optimizer, 3)
        steps(local, own, 3)

    assert said_by(train) == []
    hvd.remove_process_set(some)


def test_a_rank_without_data_does_not_look_like_one_that_differs():
    net = model()
    optimizer = distributed(net)

    def train():
        steps(net, optimizer, 9 if hvd.rank() == 0 else 3)
        hvd.join()

    assert said_by(train) == []
