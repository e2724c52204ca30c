"""A model, and data that each rank knows of every other, for the tests of training."""

import torch
from torch import nn


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(6, 4, generator=generator), torch.randn(6, 3, generator=generator)


def loss_of(net, rank):
    x, y = batch(rank)
    return nn.functional.mse_loss(net(x), y)
