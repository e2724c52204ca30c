"""A rank as an actor of Ray."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from corro.ray import ray_logger

__all__ = ["BaseHorovodWorker"]


class BaseHorovodWorker:
    """Takes a seat in a job, and runs functions in it. `ray.remote(BaseHorovodWorker)` makes it an actor.

    `executable` is an object of the program's own that lives here between calls.

    Example:
        >>> worker = ray.remote(BaseHorovodWorker).remote(world_rank=1, world_size=2)  # doctest: +SKIP
        >>> ray.get(worker.env_vars.remote())["HOROVOD_RANK"]  # doctest: +SKIP
        '1'
    """

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        self._name = f"rank {world_rank} of {world_size}"
        os.environ["HOROVOD_HOSTNAME"] = self.node_id()
        os.environ["HOROVOD_RANK"] = str(world_rank)
        os.environ["HOROVOD_SIZE"] = str(world_size)

    def __repr__(self) -> str:
        """Ray puts it before what this worker writes, and into what it raises."""
        return self._name

    def whereabouts(self) -> tuple[str, str, int, list[str]]:
        """Node, address, a free port and GPUs, in one answer."""
        return self.node_id(), self.address(), self.free_port(), self.get_gpu_ids()

    def node_id(self) -> str:
        """Ray's name of the node that this worker is on."""
        return str(ray.get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """As the machine calls itself."""
        return socket.gethostname()

    def address(self) -> str:
        """By which other nodes reach this one."""
        return str(ray.util.get_node_ip_address())

    def free_port(self) -> int:
        """A port that nobody listens on at the moment."""
        with socket.create_server(("", 0)) as server:
            return int(server.getsockname()[1])

    def get_gpu_ids(self) -> list[str]:
        """The GPUs that Ray has given to this worker."""
        return [str(gpu) for gpu in ray.get_gpu_ids()]

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Sets variables of this process."""
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """The variables of this process."""
        return dict(os.environ)

    def start_executable(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes the object that `execute` hands to functions."""
        if executable_cls is not None:
            self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Calls `func` with the executable, if there is one."""
        return func(self.executable)

    def set_queue(self, queue: Any) -> None:
        """Where `ray_logger.log` sends to."""
        ray_logger.configure(queue)
