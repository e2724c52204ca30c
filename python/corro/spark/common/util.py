"""Small things that programs written for Horovod's estimators use."""

from __future__ import annotations

from typing import Any

__all__ = ["check_validation", "is_databricks", "to_list"]


def is_databricks() -> bool:
    """Whether this is Databricks' runtime.

    Example:
        >>> from corro.spark.common.util import is_databricks
        >>> is_databricks()
        False
    """
    from corro import _native

    return bool(_native.foreign("DATABRICKS_RUNTIME_VERSION"))


def check_validation(validation: Any, df: Any = None) -> None:
    """Raises `ValueError` unless it is a share of the rows in [0, 1), or the name of a column (of `df`, if given).

    Example:
        >>> from corro.spark.common.util import check_validation
        >>> check_validation(0.2)
    """
    if validation is None or (isinstance(validation, str) and (df is None or validation in df.columns)):
        return
    if isinstance(validation, str):
        raise ValueError(f"validation names the column {validation!r}, which the DataFrame does not have.")
    if isinstance(validation, bool) or not isinstance(validation, (int, float)) or not 0 <= validation < 1:
        raise ValueError(f"validation is {validation!r}: give a share of the rows in [0, 1), or the name of a column.")


def to_list(var: Any, length: int) -> list[Any]:
    """A list of `length` values: a single value is repeated, and a list must have that many.

    Example:
        >>> from corro.spark.common.util import to_list
        >>> to_list("mse", 2)
        ['mse', 'mse']
    """
    given = list(var) if isinstance(var, (list, tuple)) else [var]
    if len(given) == 1:
        given = given * length
    if len(given) != length:
        raise ValueError(
            f"{len(given)} values were given, but {length} are needed: give one value for all, or one for each."
        )
    return given
