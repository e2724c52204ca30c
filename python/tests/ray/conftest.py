"""A real Ray of two nodes on this machine: a raylet each, with processes and pretended GPUs of its own."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

# Workers import the functions of the tests by their module's name.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH", "")]))
# Nobody else on this machine is to use the cluster.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16))
# Ray gives a raylet's parts seconds to start, which is not enough on a busy machine.
os.environ.update(RAY_agent_register_timeout_ms="120000", RAY_USAGE_STATS_ENABLED="0")

NODE = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}
# How soon Ray notices that a node is gone: seconds, and not half a minute as by default.
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


CLIENT_PORT = free_port()


@pytest.fixture
def client_address() -> str:
    """For programs outside of the cluster."""
    return f"ray://127.0.0.1:{CLIENT_PORT}"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    head = {**NODE, "_system_config": HEALTH, "ray_client_server_port": CLIENT_PORT}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(**NODE, resources={"second": 2})
    ray.init(address=made.address, log_to_driver=True)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def ray_cluster(cluster: Any) -> Any:
    """The same, with nothing of it in use: Ray may still be ending what a test has left."""
    import ray

    until = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) < 4:
        assert time.monotonic() < until, f"somebody still holds resources: {ray.available_resources()}"
        time.sleep(0.1)
    return cluster
