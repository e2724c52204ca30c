"""Who runs the training function of an estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corro import spark

__all__ = ["Backend", "SparkBackend"]


class Backend:
    """The place to plug in something else than Spark's own tasks.

    Example:
        >>> from corro.spark.common.backend import Backend
        >>> class Here(Backend):
        ...     def run(self, fn, args=(), kwargs=None, env=None):
        ...         return [fn(*args, **(kwargs or {}))]
        ...     def num_processes(self):
        ...         return 1
        >>> Here().run(max, args=(1, 2))
        [2]
    """

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Calls `fn(*args, **kwargs)` on all processes, and gives their results by rank."""
        raise NotImplementedError

    def num_processes(self) -> int:
        """How many processes there are."""
        raise NotImplementedError


class SparkBackend(Backend):
    """Spark's own tasks: `corro.spark.run`, to which `kwargs` go.

    `num_proc` is Spark's default parallelism unless given; `env` holds variables for the processes.

    Example:
        >>> from corro.spark.common.backend import SparkBackend
        >>> SparkBackend(num_proc=4, start_timeout=60).num_processes()
        4
    """

    def __init__(self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        self._num_proc = num_proc
        # Which GPUs there are is the executors' to know.
        self._env = {name: value for name, value in (env or {}).items() if name != "CUDA_VISIBLE_DEVICES"}
        self._kwargs = kwargs

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> list[Any]:
        """`more` are arguments of `corro.spark.run`, unless the constructor was given others."""
        both = {**self._env, **(env or {})}
        options = {**more, **self._kwargs}
        return spark.run(fn, args=args, kwargs=kwargs, num_proc=self.num_processes(), env=both, **options)

    def num_processes(self) -> int:
        if self._num_proc is None:
            from corro.spark._spark_job import active_context

            self._num_proc = int(active_context().defaultParallelism)
        return self._num_proc
