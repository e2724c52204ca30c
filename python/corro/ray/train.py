"""Ray Train with Corro in its workers: `CorroTrainer`, or `DataParallelTrainer(loop, backend_config=CorroConfig(), ...)`.

For Ray Train's version 2, which is the default since Ray 2.51. Its own worker group places and starts the workers, and
starts them again after a failure (`FailureConfig`); each time they meet anew.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from corro.ray._seats import meeting_place, seats

__all__ = ["CorroConfig", "CorroTrainer"]

# How long workers may take to answer while they are told who they are.
_ANSWER_SECONDS = 120.0


@dataclass
class CorroConfig(BackendConfig):
    """Makes the workers of a trainer the ranks of a job. `nics` are network interfaces to use.

    Example:
        >>> from corro.ray.train import CorroConfig
        >>> CorroConfig(nics=("eth0",))
        CorroConfig(nics=('eth0',))
    """

    nics: tuple[str, ...] = ()

    @property
    def backend_cls(self) -> type[Backend]:
        return _CorroBackend


class CorroTrainer(DataParallelTrainer):
    """Ray Train's trainer for functions that use Corro. All else is as with its `TorchTrainer`.

    Example:
        >>> from corro.ray.train import CorroTrainer
        >>> from ray.train import ScalingConfig
        >>> trainer = CorroTrainer(train, scaling_config=ScalingConfig(num_workers=2))  # doctest: +SKIP
        >>> trainer.fit()  # doctest: +SKIP
    """

    def __init__(
        self, train_loop_per_worker: Callable[..., Any], *, corro_config: CorroConfig | None = None, **more: Any
    ) -> None:
        super().__init__(train_loop_per_worker, backend_config=corro_config or CorroConfig(), **more)


class _CorroBackend(Backend):
    # A rank takes the GPU of its local rank, as programs for Horovod do.
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        nodes = worker_group.execute(_node)
        address, port = worker_group.execute_single(0, _place_to_meet)
        shared = meeting_place(address, port)
        if backend_config.nics:
            shared["HOROVOD_GLOO_IFACE"] = ",".join(backend_config.nics)
        told = [
            worker_group.execute_single_async(seat.rank, _take, {**shared, **seat.variables()}) for seat in seats(nodes)
        ]
        ray.get(told, timeout=_ANSWER_SECONDS)

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        """Nothing: a worker that ends leaves its job in order by itself."""


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _place_to_meet() -> tuple[str, int]:
    with socket.create_server(("", 0)) as server:
        return str(ray.util.get_node_ip_address()), int(server.getsockname()[1])


def _take(variables: dict[str, str]) -> None:
    os.environ.update(variables)
