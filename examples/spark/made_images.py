"""Images of digits, made up: seven bars, as on a pocket calculator, near the middle of a noisy picture of 28 x 28 points."""

from __future__ import annotations

from typing import Any

import numpy as np

# Which of the bars a digit has: top, upper left, upper right, middle, lower left, lower right, bottom.
BARS = ["1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011"]
# Where each bar is: rows and columns within a box of 15 x 9.
PLACES = [(0, 2, 1, 8), (1, 7, 0, 2), (1, 7, 7, 9), (6, 8, 1, 8), (8, 14, 0, 2), (8, 14, 7, 9), (13, 15, 1, 8)]


def images(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 784 numbers between 0 and 1, and the digit that each shows."""
    chance = np.random.default_rng(seed)
    digits = chance.integers(0, 10, count)
    pictures = chance.random((count, 28, 28), np.float32) * 0.4
    for picture, digit in zip(pictures, digits, strict=True):
        top, left = chance.integers(5, 9), chance.integers(8, 12)
        for bar, (first, last, begin, end) in zip(BARS[int(digit)], PLACES, strict=True):
            if bar == "1":
                picture[top + first : top + last, left + begin : left + end] = 0.8
    return pictures.reshape(count, 784), digits


def frame(spark: Any, count: int, seed: int = 0) -> Any:
    """A DataFrame with the columns `image` and `digit`."""
    pictures, digits = images(count, seed)
    rows = [(picture.tolist(), int(digit)) for picture, digit in zip(pictures, digits, strict=True)]
    return spark.createDataFrame(rows, "image array<float>, digit int").repartition(4)


def accuracy(predicted: Any) -> float:
    """The share of digits that are known: the largest of the ten numbers in `digit__output` says which one it is."""
    from pyspark.sql import functions as F

    scores = F.col("digit__output")
    guess = F.array_position(scores, F.array_max(scores)) - 1
    return float(predicted.select(F.avg((guess == F.col("digit")).cast("double"))).first()[0])
