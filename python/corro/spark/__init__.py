"""Jobs on Spark: `run` and `run_elastic` call a function in processes that live in the tasks of a Spark job.

The launcher runs beside the driver. Each task starts an agent (`corro agent`) that it joins to the launcher, so a rank is a
child of its task: it has the task's environment, memory limits and GPUs, and ends with it. See docs/design/spark.md.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import cloudpickle

from corro import _native
from corro._tasks.driver import Wanted, run_job
from corro.runner._flags import watching
from corro.spark._spark_job import KIND, SPARKS_PYTHON, active_context, driver_address, tasks_of

__all__ = ["run", "run_elastic"]

T = TypeVar("T")


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Iterable[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
    *,
    page: bool | str = False,
    record: str | os.PathLike[str] | None = None,
    report: bool | str | os.PathLike[str] = False,
    logdir: str | os.PathLike[str] | None = None,
) -> list[T]:
    """Calls `fn(*args, **kwargs)` in `num_proc` Spark tasks and gives their results in the order of ranks.

    `num_proc` is Spark's default parallelism unless given. Ranks have the environment of their tasks, and `env` on top.
    What they write goes to `stdout` and `stderr`, file-like objects of text or bytes; by default to the driver's.
    `nics` are network interfaces to use. `executable` is the Python of the ranks, by default that of Spark's workers.
    `use_mpi`, `use_gloo` and `extra_mpi_args` are taken, and change nothing. `page`, `record`, `report` and `logdir` are
    those of `corro.run`: the driver serves the job's live page, and writes the files.

    Raises `JobFailed`, a `RuntimeError`, if a rank fails or its executor is lost, and `TimeoutException` if Spark has not
    started all tasks within `start_timeout` seconds (`CORRO_SPARK_START_TIMEOUT`, 600). Ctrl-C, and cancelling the Spark
    job or its group, end all ranks.

    Example:
        >>> def train(rate):
        ...     import corro.numpy as hvd
        ...     hvd.init()
        ...     return hvd.rank(), rate
        >>> corro.spark.run(train, args=(0.1,), num_proc=2)  # doctest: +SKIP
        [(0, 0.1), (1, 0.1)]
    """
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi were both given: give only one of them.")
    context = active_context()
    count = _count("num_proc", num_proc, int(context.defaultParallelism))
    wanted = Wanted(
        name="corro.spark.run",
        kind=KIND,
        payload=cloudpickle.dumps((fn, tuple(args), dict(kwargs or {}))),
        command=[executable, "-m", "corro.runner.worker"] if executable else SPARKS_PYTHON,
        fewest=count,
        most=count,
        is_elastic=False,
        flags=[
            f"--num-proc={count}",
            *_flags(verbose, nics, prefix_output_with_timestamp),
            *watching(page, record, report, logdir),
        ],
        env=dict(env or {}),
        nics=_names(nics),
        start_timeout=_start_timeout(start_timeout),
        stdout=stdout,
        stderr=stderr,
    )
    return run_job(wanted, driver_address(context), tasks_of(context, count, is_elastic=False))


def run_elastic(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Iterable[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    page: bool | str = False,
    record: str | os.PathLike[str] | None = None,
    report: bool | str | os.PathLike[str] = False,
    logdir: str | os.PathLike[str] | None = None,
) -> list[T]:
    """As `run`, for a function made for elastic jobs (`hvd.elastic.run`): tasks and executors may come and go.

    The job begins with `min_num_proc` tasks or more (`num_proc` by default) and takes up to `max_num_proc`
    (`num_proc` by default) as Spark has slots for them. When an executor is lost, the other ranks go on, and Spark starts
    the lost tasks again (`spark.task.maxFailures`), whose ranks then join. Results are those of the last ranks.
    `page` and its kin are as in `run`.

    Example:
        >>> def train():
        ...     import corro.numpy as hvd
        ...     hvd.init()
        ...     return hvd.size()
        >>> corro.spark.run_elastic(train, num_proc=2, min_num_proc=1, max_num_proc=4)  # doctest: +SKIP
        [2, 2]
    """
    min_num_proc = _alias("min_np", min_np, "min_num_proc", min_num_proc)
    max_num_proc = _alias("max_np", max_np, "max_num_proc", max_num_proc)
    context = active_context()
    count = _count("num_proc", num_proc, min_num_proc or int(context.defaultParallelism))
    fewest = _count("min_num_proc", min_num_proc, count)
    most = _count("max_num_proc", max_num_proc, count)
    if not fewest <= count <= most:
        raise ValueError(
            f"min_num_proc is {fewest}, num_proc {count}, max_num_proc {most}: need min <= num_proc <= max."
        )
    flags = [f"--num-proc={count}", f"--min-num-proc={fewest}", f"--max-num-proc={most}"]
    if elastic_timeout is not None:
        flags.append(f"--elastic-timeout={elastic_timeout:g}")
    if reset_limit is not None:
        flags.append(f"--reset-limit={reset_limit}")
    wanted = Wanted(
        name="corro.spark.run_elastic",
        kind=KIND,
        payload=cloudpickle.dumps((fn, tuple(args), dict(kwargs or {}))),
        command=SPARKS_PYTHON,
        fewest=fewest,
        most=most,
        is_elastic=True,
        flags=[
            *flags,
            *_flags(verbose, nics, prefix_output_with_timestamp),
            *watching(page, record, report, logdir),
        ],
        env=dict(env or {}),
        nics=_names(nics),
        start_timeout=_start_timeout(start_timeout),
        stdout=stdout,
        stderr=stderr,
    )
    return run_job(wanted, driver_address(context), tasks_of(context, most, is_elastic=True))


def _start_timeout(given: float | None) -> float:
    return float(_native.setting("SPARK_START_TIMEOUT") or 600) if given is None else float(given)


def _count(name: str, given: int | None, default: int) -> int:
    count = default if given is None else int(given)
    if count < 1:
        raise ValueError(f"{name} is {count}: give 1 or more.")
    return count


def _flags(verbose: int, nics: Iterable[str] | str | None, timestamps: bool) -> list[str]:
    names = _names(nics)
    flags = [f"--network-interfaces={','.join(names)}"] if names else []
    if timestamps:
        flags.append("--prefix-output-with-timestamp")
    if verbose >= 2:
        flags.append("--verbose")
    return flags


def _names(nics: Iterable[str] | str | None) -> list[str]:
    return nics.split(",") if isinstance(nics, str) else list(nics or ())


def _alias(old: str, old_value: int | None, new: str, new_value: int | None) -> int | None:
    if old_value is None:
        return new_value
    warnings.warn(f"{old} is deprecated: use {new}.", DeprecationWarning, stacklevel=3)
    return old_value
