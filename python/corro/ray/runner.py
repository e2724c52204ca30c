"""Jobs on Ray: `RayExecutor`, fixed or elastic."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray

from corro.ray._fixed import FixedJob
from corro.ray._placement import Shape
from corro.ray._seats import meeting_place, seats
from corro.ray.elastic import ElasticRayExecutor

__all__ = ["Coordinator", "MiniSettings", "RayExecutor"]

T = TypeVar("T")


@dataclass
class MiniSettings:
    """What `RayExecutor.create_settings` gives. Names are Horovod's.

    Example:
        >>> from corro.ray.runner import MiniSettings
        >>> MiniSettings(timeout_s=60).verbose
        1
    """

    nics: set[str] | None = None
    verbose: int = 1
    key: Any = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: float = 300
    placement_group_timeout_s: float = 100
    elastic: bool = False

    @property
    def start_timeout(self) -> float:
        return self.timeout_s


class Coordinator:
    """Gives ranks their seats, and a place to meet. For those who start actors themselves, as Ray Train's old trainer does.

    Example:
        >>> from corro.ray.runner import Coordinator, MiniSettings
        >>> coordinator = Coordinator(MiniSettings())
        >>> for rank, node in enumerate(["a", "a", "b"]):
        ...     coordinator.register("host", node, rank)
        >>> coordinator.finalize_registration()[2]["HOROVOD_CROSS_RANK"]
        '1'
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self._nodes: dict[int, str] = {}
        self._hosts: dict[int, str] = {}

    @property
    def world_size(self) -> int:
        return len(self._nodes)

    @property
    def hostnames(self) -> set[str]:
        return set(self._hosts.values())

    @property
    def node_id_string(self) -> str:
        """The nodes with their numbers of ranks, in the form of Horovod's lists of hosts."""
        nodes = self._in_order()
        return ",".join(f"{node}:{nodes.count(node)}" for node in dict.fromkeys(nodes))

    def register(self, hostname: str, node_id: str, world_rank: int) -> None:
        """There is a worker of this rank on this node."""
        self._nodes[world_rank] = node_id
        self._hosts[world_rank] = hostname

    def finalize_registration(self) -> dict[int, dict[str, str]]:
        """The variables of every rank."""
        return {seat.rank: seat.variables() for seat in seats(self._in_order())}

    def establish_rendezvous(self, address: str | None = None, port: int | None = None) -> dict[str, str]:
        """The variables that all ranks share: where rank 0 can be reached, and the secret of the job.

        Without an address it is the host that rank 0 was registered with. Without a port it is one taken at random from
        those that systems do not give away by themselves: nobody asks rank 0's node whether it is free.
        """
        port = port or secrets.choice(range(20_000, 30_000))
        return meeting_place(address or self._hosts.get(0) or ray.util.get_node_ip_address(), port)

    def _in_order(self) -> list[str]:
        missing = [rank for rank in range(len(self._nodes)) if rank not in self._nodes]
        if missing:
            raise ValueError(f"rank {missing[0]} has not registered, but {len(self._nodes)} other ranks have.")
        return [self._nodes[rank] for rank in range(len(self._nodes))]


class RayExecutor:
    """Runs functions as the ranks of a job, in actors that Ray places.

    Give `num_workers`, and workers go where there is room; or `num_hosts` and `num_workers_per_host`, and each host gets as
    many. Workers stay between calls until `shutdown`. With `min_workers` the job is elastic, as `ElasticRayExecutor`'s: each
    call starts workers of its own, whose number may change while it runs.

    Example:
        >>> from corro.ray import RayExecutor  # doctest: +SKIP
        >>> executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)  # doctest: +SKIP
        >>> executor.start()  # doctest: +SKIP
        >>> executor.run(train, args=[0.1])  # doctest: +SKIP
        >>> executor.shutdown()  # doctest: +SKIP
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: set[str] | None = None,
    ) -> MiniSettings:
        """Settings with these values. `ssh_str` is written to `ssh_identity_file` if there is none; workers need no ssh."""
        if ssh_str and ssh_identity_file and not os.path.exists(ssh_identity_file):
            path = Path(ssh_identity_file)
            path.touch(mode=0o600)
            path.write_text(ssh_str, encoding="utf-8")
        return MiniSettings(
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
            nics=nics,
        )

    def __init__(
        self,
        settings: MiniSettings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[int] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
    ) -> None:
        if max_workers is not None and (min_workers is None or min_workers < 1):
            raise ValueError(
                f"max_workers is {max_workers}, and min_workers {min_workers}: give min_workers, 1 or more."
            )
        if min_workers is not None and num_workers is not None:
            raise ValueError("min_workers (for elastic jobs) and num_workers (for others) are both given: give one.")
        if gpus_per_worker is not None and not use_gpu:
            raise ValueError("gpus_per_worker is given, and use_gpu is not set: set use_gpu=True.")
        if gpus_per_worker is not None and gpus_per_worker < 1:
            raise ValueError(f"gpus_per_worker is {gpus_per_worker}: give 1 or more.")
        self.settings = settings or self.create_settings()
        self.num_workers = num_workers
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host
        self.min_workers = min_workers
        self.max_workers = max_workers
        self._use_current = use_current_placement_group
        self._elastic: dict[str, Any] = {
            "reset_limit": reset_limit,
            "cooldown_range": cooldown_range,
            "elastic_timeout": elastic_timeout,
        }
        self._override_discovery = override_discovery
        self._cpus = cpus_per_worker
        self._gpus = (gpus_per_worker or 1) if use_gpu else 0
        self._job: FixedJob | _ElasticJob | None = None

    @property
    def workers(self) -> list[Any]:
        """The actors of a fixed job, by rank."""
        return self._job.workers if isinstance(self._job, FixedJob) else []

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the workers and gives them their seats. `executable_cls` is made into an object in each of them."""
        if self._job is not None:
            raise RuntimeError("the workers are started already: call shutdown() before another start().")
        executable = (executable_cls, list(executable_args or ()), dict(executable_kwargs or {}))
        variables = {name: str(value) for name, value in (extra_env_vars or {}).items()}
        if self.min_workers is not None:
            self._job = _ElasticJob(self._elastic_executor(variables), executable)
            return
        assert self.num_workers is None or self.num_hosts is None, "give num_workers or num_hosts, not both"
        count = self.num_workers or (self.num_hosts or 0) * self.num_workers_per_host
        if count < 1:
            raise ValueError(
                "the number of workers is not given: give num_workers, or num_hosts and num_workers_per_host."
            )
        shape = Shape(count, self.num_hosts, self._cpus, self._gpus)
        self._job = FixedJob.start(shape, self.settings, self._use_current, executable, variables)

    def _elastic_executor(self, variables: dict[str, str]) -> ElasticRayExecutor:
        assert self.min_workers is not None
        settings = ElasticRayExecutor.create_settings(
            min_num_proc=self.min_workers,
            max_num_proc=self.max_workers,
            nics=self.settings.nics,
            timeout_s=self.settings.timeout_s,
            discovery=getattr(self.settings, "discovery", None),
            **self._elastic,
        )
        executor = ElasticRayExecutor(
            settings,
            use_gpu=bool(self._gpus),
            cpus_per_slot=self._cpus,
            gpus_per_slot=self._gpus or None,
            env_vars=variables,
            override_discovery=self._override_discovery,
        )
        executor.start()
        return executor

    def run(
        self,
        fn: Callable[..., T],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None = None,
    ) -> list[T]:
        """Calls `fn(*args, **kwargs)` in every worker; the results, by rank. `callbacks` are for elastic jobs."""
        return self._started().execute(_call(fn, args, kwargs), callbacks)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As `run`, at once: Ray's references to the results."""
        return self._started().execute_remote(_call(fn, args, kwargs))

    def execute(
        self, fn: Callable[[Any], T], callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None = None
    ) -> list[T]:
        """Calls `fn(executable)` in every worker; the results, by rank."""
        return self._started().execute(fn, callbacks)

    def execute_single(self, fn: Callable[[Any], T]) -> T:
        """Calls `fn(executable)` in the worker of rank 0."""
        return self._started().execute_single(fn)

    def shutdown(self) -> None:
        """Ends the workers, and gives back what was reserved for them."""
        job, self._job = self._job, None
        if isinstance(job, FixedJob):
            job.shutdown()

    def _started(self) -> FixedJob | _ElasticJob:
        if self._job is None:
            raise RuntimeError("there are no workers: call start() first.")
        return self._job


class _ElasticJob:
    """Each call is a job of its own: the number of workers may be another one each time."""

    def __init__(self, executor: ElasticRayExecutor, executable: tuple[Any, list[Any], dict[str, Any]]) -> None:
        self._executor = executor
        self._executable = executable

    def execute(self, fn: Callable[[Any], T], callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None) -> list[T]:
        kind, args, kwargs = self._executable

        def call() -> T:
            return fn(kind(*args, **kwargs) if kind is not None else None)

        return self._executor.run(call, callbacks)

    def execute_remote(self, fn: Callable[[Any], Any]) -> list[Any]:
        raise NotImplementedError("run_remote is for fixed jobs: an elastic job has no workers between calls. Use run.")

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        raise NotImplementedError(
            "execute_single is for fixed jobs: in an elastic job another worker may become rank 0. Use execute."
        )


def _call(fn: Callable[..., T], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Callable[[Any], T]:
    given, named = list(args or ()), dict(kwargs or {})
    return lambda _: fn(*given, **named)
