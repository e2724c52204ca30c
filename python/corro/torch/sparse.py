"""Optimizers for rows of sharded tables: each row that was looked up is updated once a step, the others not at all.

PyTorch's formulae. All of it is lazy: momentum and the like of a row that is not looked up do not decay, as in `SparseAdam`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from corro.torch._rows import add_rows

__all__ = ["SGD", "Adagrad", "Adam"]


@dataclass
class SGD:
    """Plain gradient descent.

    Example:
        >>> emb = hvd.ShardedEmbedding(10, 4, optimizer=hvd.sparse.SGD(lr=0.1))
    """

    lr: float = 0.01

    def slots(self, _rows: int, _dim: int) -> dict[str, torch.Tensor]:
        """What is remembered of so many rows."""
        return {}

    def update(
        self, weight: torch.Tensor, _slots: dict[str, torch.Tensor], rows: torch.Tensor, grad: torch.Tensor, _step: int
    ) -> None:
        """Updates some rows of a table, each of which is there once."""
        add_rows(weight, rows, grad * -self.lr)


@dataclass
class Adagrad:
    """Adagrad; with `rowwise` it remembers one number for each row, of the mean of squares.

    Example:
        >>> emb = hvd.ShardedEmbedding(10, 4, optimizer=hvd.sparse.Adagrad(lr=0.1, rowwise=True))
    """

    lr: float = 0.01
    rowwise: bool = False
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    def slots(self, rows: int, dim: int) -> dict[str, torch.Tensor]:
        """What is remembered of so many rows."""
        return {"sum": torch.full((rows, 1 if self.rowwise else dim), self.initial_accumulator_value)}

    def update(
        self, weight: torch.Tensor, slots: dict[str, torch.Tensor], rows: torch.Tensor, grad: torch.Tensor, _step: int
    ) -> None:
        """Updates some rows of a table, each of which is there once."""
        squares = grad.square()
        total = slots["sum"][rows] + (squares.mean(1, keepdim=True) if self.rowwise else squares)
        slots["sum"][rows] = total
        weight[rows] -= self.lr * grad / (total.sqrt() + self.eps)


@dataclass
class Adam:
    """`torch.optim.SparseAdam`.

    Example:
        >>> emb = hvd.ShardedEmbedding(10, 4, optimizer=hvd.sparse.Adam(lr=0.001))
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def slots(self, rows: int, dim: int) -> dict[str, torch.Tensor]:
        """What is remembered of so many rows."""
        return {"first": torch.zeros(rows, dim), "second": torch.zeros(rows, dim)}

    def update(
        self, weight: torch.Tensor, slots: dict[str, torch.Tensor], rows: torch.Tensor, grad: torch.Tensor, step: int
    ) -> None:
        """Updates some rows of a table, each of which is there once."""
        beta1, beta2 = self.betas
        first, second = slots["first"][rows], slots["second"][rows]
        first += (grad - first) * (1 - beta1)
        second += (grad.square() - second) * (1 - beta2)
        slots["first"][rows], slots["second"][rows] = first, second
        length = self.lr * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        weight[rows] -= length * first / (second.sqrt() + self.eps)


RowOptimizer = SGD | Adagrad | Adam
