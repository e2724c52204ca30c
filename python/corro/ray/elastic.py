"""Elastic jobs on Ray: nodes and actors may come and go.

Each rank is a process of its own, the child of an actor that holds its resources. The launcher runs beside this program, and
is the one of `corro run`. See docs/ray.md.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import cloudpickle
import ray

from corro._tasks.driver import Calls, Wanted, run_job
from corro.ray._actors import KIND, RANK, Actors, Needs
from corro.ray._slots import ANYWHERE, slots_of
from corro.runner.elastic.discovery import HostDiscovery
from corro.runner.elastic.settings import ElasticSettings

__all__ = ["ElasticRayExecutor", "RayHostDiscovery"]

T = TypeVar("T")


class RayHostDiscovery(HostDiscovery):
    """How many workers the nodes of the Ray cluster can hold, by the resources they have.

    Example:
        >>> from corro.ray.elastic import RayHostDiscovery
        >>> discovery = RayHostDiscovery(cpus_per_slot=2)
        >>> discovery.find_available_hosts_and_slots()  # doctest: +SKIP
        {'10.0.0.1': 4, '10.0.0.2': 4}
    """

    def __init__(self, use_gpu: bool = False, cpus_per_slot: float = 1, gpus_per_slot: float = 1) -> None:
        self.use_gpu = use_gpu
        self.cpus_per_slot = cpus_per_slot
        self.gpus_per_slot = gpus_per_slot

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return slots_of(ray.nodes(), self.cpus_per_slot, self.gpus_per_slot if self.use_gpu else 0)


class ElasticRayExecutor:
    """Runs a function made for elastic jobs (`hvd.elastic.run`) on as many workers as Ray has room for.

    The job begins with `min_num_proc` workers, and takes up to `max_num_proc`. Workers that have no room wait in Ray's
    queue, which is what Ray's autoscaler looks at. If a worker or its node is lost the others go on, and Ray is asked for
    another one.

    With `override_discovery=False`, `settings.discovery` (a `HostDiscovery`) says how many workers there are to be on which
    addresses.

    Example:
        >>> from corro.ray import ElasticRayExecutor
        >>> settings = ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=4)
        >>> executor = ElasticRayExecutor(settings, cpus_per_slot=2)
        >>> executor.start()  # doctest: +SKIP
        >>> executor.run(train)  # doctest: +SKIP
    """

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Iterable[str] | str | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> ElasticSettings:
        """Settings with these values. `timeout_s` and `ssh_identity_file` are taken, and change nothing: there is no ssh."""
        fewest = _alias("min_np", min_np, "min_num_proc", min_num_proc)
        most = _alias("max_np", max_np, "max_num_proc", max_num_proc)
        return ElasticSettings(
            discovery=kwargs.pop("discovery", None),
            min_num_proc=fewest,
            max_num_proc=most,
            elastic_timeout=elastic_timeout,
            reset_limit=reset_limit,
            nics=nics,
            ssh_identity_file=ssh_identity_file or os.path.expanduser("~/ray_bootstrap_key.pem"),
            start_timeout=timeout_s,
            **kwargs,
        )

    def __init__(
        self,
        settings: ElasticSettings,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float | None = None,
        env_vars: Mapping[str, str] | None = None,
        override_discovery: bool = True,
    ) -> None:
        if gpus_per_slot and not use_gpu:
            raise ValueError("gpus_per_slot is given, and use_gpu is not set: set use_gpu=True.")
        if use_gpu and gpus_per_slot is not None and gpus_per_slot < 1:
            raise ValueError(f"gpus_per_slot is {gpus_per_slot}: give 1 or more.")
        self.settings = settings
        self.env_vars = dict(env_vars or {})
        self._needs = Needs(cpus_per_slot, (gpus_per_slot or 1) if use_gpu else 0)
        self._is_ours = override_discovery
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_slot, gpus_per_slot or 1)
        elif settings.discovery is None:
            raise ValueError("override_discovery is False, and settings.discovery is None: set it to a HostDiscovery.")
        self._is_started = False

    def start(self) -> None:
        """Checks that Ray is there. Workers are started by `run`."""
        if not ray.is_initialized():
            raise RuntimeError("Ray is not initialized: call ray.init() first.")
        self._is_started = True

    def run(
        self,
        worker_fn: Callable[[], T],
        callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None = None,
    ) -> list[T]:
        """Calls `worker_fn()` in every worker; the results of the last ones there were, by rank.

        Callbacks are called here with each dictionary that a worker gives to `ray_logger.log`. `JobFailed`, a
        `RuntimeError`, says which rank has failed, and why.
        """
        if not self._is_started:
            raise RuntimeError("the executor is not started: call start() first.")
        if ray.util.client.ray.is_connected():
            # Workers can't reach a program outside of the cluster: the launcher runs inside, and what it prints comes here.
            inside: Any = ray.remote(num_cpus=0, max_retries=0)(_run)
            return list(ray.get(inside.remote(self, cloudpickle.dumps((worker_fn, list(callbacks or ()))))))
        return self._run(worker_fn, list(callbacks or ()))

    def _run(self, worker_fn: Callable[[], T], callbacks: Sequence[Callable[[dict[str, Any]], Any]]) -> list[T]:
        fewest, most = int(self.settings.min_num_proc or 1), self.settings.max_num_proc

        def told(letter: bytes) -> None:
            values = cloudpickle.loads(letter)
            for callback in callbacks:
                callback(values)

        wanted = Wanted(
            name="corro.ray",
            kind=KIND,
            payload=cloudpickle.dumps((worker_fn, (), {})),
            command=RANK,
            fewest=fewest,
            most=min(sum(self.settings.discovery.find_available_hosts_and_slots().values()), most or 1 << 30),
            is_elastic=True,
            flags=self._flags(fewest, most),
            env={name: str(value) for name, value in self.env_vars.items()},
            nics=_names(self.settings.nics),
            start_timeout=float(self.settings.elastic_timeout or 600),
            told=told,
        )
        return run_job(wanted, ray.util.get_node_ip_address(), self._actors)

    def _actors(self, calls: Calls) -> Actors:
        return Actors(self._needs, self._hosts, self.settings.max_num_proc, calls)

    def _hosts(self) -> dict[str, int]:
        """How many workers are wanted where."""
        if self._is_ours and self.settings.max_num_proc is not None:
            return {ANYWHERE: self.settings.max_num_proc}
        found = dict(self.settings.discovery.find_available_hosts_and_slots())
        return {ANYWHERE: sum(found.values())} if self._is_ours else found

    def _flags(self, fewest: int, most: int | None) -> list[str]:
        settings = self.settings
        flags = [f"--num-proc={fewest}", f"--min-num-proc={fewest}"]
        given = {
            "max-num-proc": most,
            "elastic-timeout": settings.elastic_timeout,
            "reset-limit": settings.reset_limit,
            "network-interfaces": ",".join(_names(settings.nics)) or None,
        }
        flags += [f"--{name}={value}" for name, value in given.items() if value is not None]
        if settings.cooldown_range:
            flags += ["--blacklist-cooldown-range", *(str(seconds) for seconds in settings.cooldown_range)]
        return flags


def _run(executor: ElasticRayExecutor, call: bytes) -> list[Any]:
    worker_fn, callbacks = cloudpickle.loads(call)
    return executor._run(worker_fn, callbacks)


def _names(nics: Any) -> list[str]:
    return nics.split(",") if isinstance(nics, str) else sorted(nics or ())


def _alias(old: str, old_value: int | None, new: str, new_value: int | None) -> int | None:
    if old_value is None:
        return new_value
    warnings.warn(f"{old} is deprecated: use {new}.", DeprecationWarning, stacklevel=3)
    return old_value
