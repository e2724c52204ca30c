"""What the tests of all estimators share: parameters, and what a trained model must show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from corro.spark.common.store import Store

WEIGHTS = np.array([1.0, -2.0, 3.0])


def line(application: Any) -> Any:
    """`y` is a line through `features`; every tenth row is wrong, and says by `weight` that it does not count."""
    from pyspark.ml.linalg import Vectors

    chance = np.random.default_rng(5)
    x = chance.random((300, 3))
    wrong = np.arange(300) % 10 == 0
    y = np.where(wrong, 100.0, x @ WEIGHTS + 0.5)
    data = [
        (Vectors.sparse(3, [0, 1, 2], list(map(float, a))) if n % 2 else Vectors.dense(a), float(b), 0.0 if c else 1.0,
         n % 5 == 0)
        for n, (a, b, c) in enumerate(zip(x, y, wrong, strict=True))
    ]  # fmt: skip
    frame = application.createDataFrame(data, ["features", "y", "weight", "held_out"]).repartition(4).cache()
    frame.count()
    return frame


def common(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {
        "store": Store.create(str(tmp_path)), "feature_cols": ["features"], "label_cols": ["y"], "num_proc": 2,
        "batch_size": 15, "epochs": 12, "verbose": 0, "random_seed": 1, "sample_weight_col": "weight",
        "validation": "held_out", **more,
    }  # fmt: skip


def check_predictions(model: Any, rows: Any, limit: float = 0.2) -> None:
    """All columns are there, in their order, and predictions are right where rows are."""
    predicted = model.transform(rows)
    assert predicted.columns == [*rows.columns, "y__output"]
    pairs = [(row["y"], row["y__output"]) for row in predicted.filter("weight > 0").collect()]
    assert len(pairs) == 270
    assert max(abs(y - given) for y, given in pairs) < limit


def check_history(history: dict[str, list[float]], epochs: int = 12) -> None:
    assert len(history["loss"]) == len(history["val_loss"]) == epochs
    assert history["loss"][-1] < history["loss"][0] / 5
    # The rows that are wrong would add thousands.
    assert history["val_loss"][-1] < 1
