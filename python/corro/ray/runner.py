"""Fixed jobs on Ray: every rank is an actor, which stays between calls."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from corro.ray._placement import Placement, Shape
from corro.ray._seats import seats
from corro.ray.worker import BaseHorovodWorker

__all__ = ["Coordinator", "MiniSettings", "RayExecutor"]

# How long workers may take to answer while a job is set up.
_ANSWER_SECONDS = 120.0


@dataclass
class MiniSettings:
    """What `RayExecutor.create_settings` gives. Names are Horovod's."""

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
    """Gives ranks their seats, and a place to meet. For those who start actors of their own, as Ray Train's old trainer does.

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
        """The nodes and their numbers of ranks: `a:2,b:1`."""
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
        """The variables that all ranks share: where rank 0 can be reached, and the secret of the job."""
        return meeting_place(address or ray.util.get_node_ip_address(), port or 0)

    def _in_order(self) -> list[str]:
        missing = [rank for rank in range(len(self._nodes)) if rank not in self._nodes]
        if missing:
            raise ValueError(f"rank {missing[0]} has not registered, and {len(self._nodes)} ranks have.")
        return [self._nodes[rank] for rank in range(len(self._nodes))]


def meeting_place(address: str, port: int) -> dict[str, str]:
    """Where rank 0 listens, and a new secret. It travels in Ray's own messages, not on a command line."""
    token = secrets.token_hex(32)
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "CORRO_RENDEZVOUS_PORT": str(port),
        "CORRO_SECRET": token,
        "CORRO_JOB_ID": f"ray-{token[:16]}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


class RayExecutor:
    """Runs functions as the ranks of a job, in actors that Ray places.

    Give `num_workers`, and workers go where there is room; or `num_hosts` and `num_workers_per_host`, and each host gets as
    many. With `min_workers` the job is elastic: see `ElasticRayExecutor`.

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
    ) -> None:
        if gpus_per_worker and not use_gpu:
            raise ValueError("gpus_per_worker is given, and use_gpu is not set: set use_gpu=True.")
        if use_gpu and gpus_per_worker is not None and gpus_per_worker < 1:
            raise ValueError(f"gpus_per_worker is {gpus_per_worker}: give 1 or more.")
        self.settings = settings or self.create_settings()
        self.num_workers = num_workers
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host
        self._cpus = cpus_per_worker
        self._gpus = (gpus_per_worker or 1) if use_gpu else 0
        self._use_current = use_current_placement_group
        self._placement: Placement | None = None
        self.workers: list[Any] = []

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the workers and gives them their seats. `executable_cls` is made into an object in each of them."""
        assert self.num_workers is None or self.num_hosts is None, "give num_workers or num_hosts, not both"
        count = self.num_workers or (self.num_hosts or 0) * self.num_workers_per_host
        if count < 1:
            raise ValueError("how many workers? Give num_workers, or num_hosts and num_workers_per_host.")
        shape = Shape(count, self.num_hosts, self._cpus, self._gpus)
        self._placement = Placement(shape, self._use_current, self.settings.placement_group_timeout_s)
        try:
            self._start_workers(count, dict(extra_env_vars or {}))
            made = [
                worker.start_executable.remote(executable_cls, executable_args, executable_kwargs)
                for worker in self.workers
            ]
            ray.get(made)
        except BaseException:
            self.shutdown()
            raise

    def _start_workers(self, count: int, extra: dict[str, Any]) -> None:
        assert self._placement is not None
        actor = ray.remote(BaseHorovodWorker)
        self.workers = [
            actor.options(**self._placement.options(rank)).remote(world_rank=rank, world_size=count)
            for rank in range(count)
        ]
        nodes = self._ask(lambda worker: worker.node_id.remote())
        address, port = ray.get(
            [self.workers[0].address.remote(), self.workers[0].free_port.remote()], timeout=_ANSWER_SECONDS
        )
        shared = {**extra, **meeting_place(address, port)}
        if self.settings.nics:
            shared["HOROVOD_GLOO_IFACE"] = ",".join(sorted(self.settings.nics))
        if self._gpus:
            shared_by_node = self._gpus_by_node(nodes)
        else:
            shared_by_node = {}
        told = [
            worker.update_env_vars.remote({**shared, **shared_by_node.get(seat.node, {}), **seat.variables()})
            for worker, seat in zip(self.workers, seats(nodes), strict=True)
        ]
        ray.get(told, timeout=_ANSWER_SECONDS)

    def _gpus_by_node(self, nodes: Sequence[str]) -> dict[str, dict[str, str]]:
        """Every worker sees all GPUs that the job has on its node, and takes the one of its local rank."""
        found: dict[str, list[str]] = {}
        for node, given in zip(nodes, self._ask(lambda worker: worker.get_gpu_ids.remote()), strict=True):
            found.setdefault(node, []).extend(gpu for gpu in given if gpu not in found.get(node, []))
        return {node: {"CUDA_VISIBLE_DEVICES": ",".join(sorted(gpus, key=_number))} for node, gpus in found.items()}

    def _ask(self, call: Callable[[Any], Any]) -> list[Any]:
        return list(ray.get([call(worker) for worker in self.workers], timeout=_ANSWER_SECONDS))

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Calls `fn(*args, **kwargs)` in every worker; the results, by rank. `callbacks` are for elastic jobs."""
        return list(ray.get(self.run_remote(fn, args, kwargs)))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As `run`, at once: Ray's references to the results."""
        given, named = list(args or ()), dict(kwargs or {})
        return [worker.execute.remote(lambda _: fn(*given, **named)) for worker in self._started()]

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Calls `fn(executable)` in every worker; the results, by rank."""
        return list(ray.get([worker.execute.remote(fn) for worker in self._started()]))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls `fn(executable)` in the worker of rank 0."""
        return ray.get(self._started()[0].execute.remote(fn))

    def shutdown(self) -> None:
        """Ends the workers, and gives back what was reserved for them."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
        if self._placement is not None:
            self._placement.release()
            self._placement = None

    def _started(self) -> list[Any]:
        if not self.workers:
            raise RuntimeError("there are no workers: call start() first.")
        return self.workers


def _number(gpu: str) -> tuple[int, str]:
    return (int(gpu), "") if gpu.isdigit() else (1 << 30, gpu)
