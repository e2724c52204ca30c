"""Trains a small network on handwritten digits with nothing but numpy, on any number of processes.

    corro run -np 2 python examples/numpy/digits.py

For images without a training framework: gradients are averaged by `hvd.allreduce`. The digits come from scikit-learn, or
from a file of its package (`--data digits.csv.gz`). The test accuracy is at least 95 %, on however many ranks.
"""

from __future__ import annotations

import argparse

import numpy as np

import corro.numpy as hvd


def digits(path: str | None) -> tuple[np.ndarray, np.ndarray]:
    """All images, as rows of numbers from 0 to 1, and what they show; in an order that all ranks know."""
    if path:
        table = np.loadtxt(path, delimiter=",")
        images, labels = table[:, :-1], table[:, -1].astype(int)
    else:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return images[order] / 16.0, labels[order]


def gradients(
    weights: list[np.ndarray], images: np.ndarray, labels: np.ndarray
) -> tuple[list[np.ndarray], float, float]:
    """Those of the cross entropy, itself, and how many images in a hundred are seen right."""
    first, second = weights
    hidden = np.maximum(images @ first, 0)
    scores = hidden @ second
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(chances[rows, labels] + 1e-12).mean()
    right = float((scores.argmax(axis=1) == labels).mean())
    error = chances
    error[rows, labels] -= 1
    error /= len(labels)
    back = (error @ second.T) * (hidden > 0)
    return [images.T @ back, hidden.T @ error], float(loss), right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="scikit-learn's digits.csv.gz")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=0.5)
    options = parser.parse_args()

    hvd.init()
    images, labels = digits(options.data)
    train, test = slice(0, 1500), slice(1500, None)
    random = np.random.default_rng(1)
    weights = [random.normal(0, 0.2, (64, 64)), random.normal(0, 0.2, (64, 10))]
    share = max(options.batch_size // hvd.size(), 1)
    for epoch in range(options.epochs):
        order = np.random.default_rng(epoch).permutation(1500)
        loss = 0.0
        for begin in range(0, 1500 - share * hvd.size() + 1, share * hvd.size()):
            mine = order[begin + hvd.rank() * share :][:share]
            slopes, loss, _ = gradients(weights, images[train][mine], labels[train][mine])
            for number, slope in enumerate(slopes):
                weights[number] -= options.lr * hvd.allreduce(slope, op=hvd.Average, name=f"weights {number}")
        if hvd.rank() == 0 and epoch % 10 == 9:
            print(f"epoch {epoch + 1}   ranks {hvd.size()}   loss {loss:.3f}", flush=True)
    _, _, right = gradients(weights, images[test], labels[test])
    if hvd.rank() == 0:
        print(f"ranks {hvd.size()}   test accuracy {right:.2%}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
