"""The sales of a chain of shops, made up: two tables, as a business has them, and how they become one with numbers.

A shop sells by its size and kind, less the nearer a competitor is, more while it advertises, and hardly on Sundays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

KINDS = ["city", "station", "suburb", "village"]
# What goes into a model: which shop, which kind of shop, which day of the week, and numbers.
CATEGORIES = {"shop": 40, "kind_index": len(KINDS), "weekday": 7}
NUMBERS = ["advertised", "distance", "season_sin", "season_cos"]


def tables(spark: Any, days: int = 120, seed: int = 0) -> tuple[Any, Any]:
    """Shops, and what each of them has sold on each day."""
    chance = np.random.default_rng(seed)
    count = CATEGORIES["shop"]
    size, kind = chance.lognormal(0, 0.3, count), chance.integers(0, len(KINDS), count)
    distance = chance.lognormal(1, 1, count)
    week = np.array([1.2, 1.0, 0.95, 1.0, 1.1, 1.3, 0.2])
    shops = [(shop, KINDS[int(kind[shop])], float(distance[shop])) for shop in range(count)]
    sales: list[tuple[int, int, bool, float]] = []
    for day in range(days):
        advertised = chance.random(count) < 0.3
        usual = 5000 * size * (1 + 0.2 * kind) * week[day % 7] * (1 + 0.2 * np.sin(day / 365 * 2 * np.pi))
        sold = usual * (1 + 0.4 * advertised) * (1 - 0.3 / (1 + distance)) * chance.lognormal(0, 0.05, count)
        sales += [(shop, day, bool(advertised[shop]), float(sold[shop])) for shop in range(count)]
    return (
        spark.createDataFrame(shops, "shop int, kind string, competitor_km double"),
        spark.createDataFrame(sales, "shop int, day int, advertised boolean, sold double"),
    )


def prepared(shops: Any, sales: Any) -> Any:
    """One table: categories as numbers from 0 on, numbers as one vector, and the logarithm of what was sold."""
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
    from pyspark.sql import functions as F

    turn = F.col("day") * (2 * np.pi / 365)
    joined = sales.join(shops, "shop").select(
        "shop", "kind", "day", (F.col("day") % 7).alias("weekday"),
        F.col("advertised").cast("double").alias("advertised"),
        F.log1p("competitor_km").alias("distance"), F.sin(turn).alias("season_sin"), F.cos(turn).alias("season_cos"),
        F.log("sold").cast("float").alias("log_sold"),
    )  # fmt: skip
    stages: list[Any] = [
        StringIndexer(inputCol="kind", outputCol="kind_index"),
        VectorAssembler(inputCols=NUMBERS, outputCol="plain_numbers"),
        StandardScaler(withMean=True, inputCol="plain_numbers", outputCol="numbers"),
    ]
    whole = Pipeline(stages=stages).fit(joined).transform(joined)
    return whole.select(*[F.col(name).cast("long").alias(name) for name in CATEGORIES], "numbers", "log_sold", "day")


def error_in_percent(predicted: Any) -> float:
    """How far predictions are from what was sold, as the root of the mean of squares."""
    from pyspark.sql import functions as F

    off = F.exp(F.col("log_sold__output") - F.col("log_sold")) - 1
    return 100 * float(predicted.select(F.sqrt(F.avg(off * off))).first()[0])
