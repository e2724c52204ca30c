"""Preprocessing on other machines: finds the dispatchers and workers of TensorFlow's data service for a training.

The jobs meet at a small server (`ComputeService`), whose address and key are in a file that `compute_worker` writes and the
training reads. It only says where dispatchers are, and when to stop; every connection proves the key both ways.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import tensorflow as tf

from corro._front import basics

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

# How often somebody who waits looks again.
LOOK = 0.1


@dataclass(frozen=True)
class TfDataServiceConfig:
    """What a training must know of its data service."""

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    # As a list, or by interface: {"eth0": [("10.0.0.1", 4000)]}.
    addresses: Any
    key: bytes
    timeout: int = 60

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        by_interface = self.addresses.values() if isinstance(self.addresses, dict) else [self.addresses]
        return ComputeClient([tuple(address) for some in by_interface for address in some], self.key, self.timeout)

    def to_dict(self) -> dict[str, Any]:
        return {
            "dispatchers": self.dispatchers,
            "workers_per_dispatcher": self.workers_per_dispatcher,
            "dispatcher_side": self.dispatcher_side,
            "addresses": _each_address(self.addresses, list),
            "key": self.key.hex(),
            "timeout": self.timeout,
        }

    @staticmethod
    def from_dict(config: dict[str, Any]) -> TfDataServiceConfig:
        return TfDataServiceConfig(
            dispatchers=config["dispatchers"],
            workers_per_dispatcher=config["workers_per_dispatcher"],
            dispatcher_side=config["dispatcher_side"],
            addresses=_each_address(config["addresses"], tuple),
            key=bytes.fromhex(config["key"]),
            timeout=config.get("timeout", 60),
        )

    def write(self, filename: str) -> None:
        """Writes the file as a whole: who waits for it never sees a part. Only its owner may read the key."""
        part = f"{filename}.{os.getpid()}.part"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(self.to_dict(), file)
        os.replace(part, filename)

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        while wait_for_file_creation and not os.path.exists(filename):
            time.sleep(LOOK)
        with open(filename) as file:
            return TfDataServiceConfig.from_dict(json.load(file))


def _each_address(addresses: Any, kind: type) -> Any:
    """The same addresses, each as a list (which JSON has) or as a tuple (which sockets take)."""
    if isinstance(addresses, dict):
        return {interface: _each_address(some, kind) for interface, some in addresses.items()}
    return [kind(address) for address in addresses]


class ComputeService:
    """The server that the jobs meet at. Lives in the first compute worker."""

    def __init__(self, dispatchers: int, workers_per_dispatcher: int, key: bytes | None = None) -> None:
        self.dispatchers = dispatchers
        self.workers_per_dispatcher = workers_per_dispatcher
        self.key = key or secrets.token_bytes(32)
        self._listener = Listener(("0.0.0.0", 0), authkey=self.key)
        self._known: dict[str, str] = {}
        self._workers: dict[str, set[int]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        port = int(self._listener.address[1])
        return [(address, port) for address in sorted({_own_address(), "127.0.0.1"})]

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except Exception:
                # Somebody without the key, or who went away; the next one may be fine.
                time.sleep(LOOK)
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            try:
                question = json.loads(connection.recv_bytes(1 << 16))
                connection.send_bytes(json.dumps(self._reply(question)).encode())
            except (EOFError, OSError, ValueError, KeyError, TypeError):
                return

    def _reply(self, question: dict[str, Any]) -> Any:
        what, dispatcher = question["what"], str(question.get("dispatcher", ""))
        with self._lock:
            if what == "dispatcher is":
                self._known[dispatcher] = str(question["address"])
            elif what == "where is":
                return self._known.get(dispatcher)
            elif what == "worker is":
                self._workers.setdefault(dispatcher, set()).add(int(question["worker"]))
            elif what == "how many workers":
                return len(self._workers.get(dispatcher, ()))
            elif what == "stop":
                self._known["stop"] = "stop"
            elif what == "is stopped":
                return "stop" in self._known
        return None


class ComputeClient:
    """Asks the server."""

    def __init__(self, addresses: list[tuple[str, int]], key: bytes, timeout: float) -> None:
        self._addresses = addresses
        self._key = key
        self._timeout = timeout

    def _ask(self, what: str, **more: Any) -> Any:
        refused: Exception | None = None
        for address in self._addresses:
            try:
                with Client(address, authkey=self._key) as connection:
                    connection.send_bytes(json.dumps({"what": what, **more}).encode())
                    return json.loads(connection.recv_bytes(1 << 16))
            except (OSError, EOFError) as error:
                refused = error
        raise ConnectionError(f"the compute service does not answer at {self._addresses}: {refused}") from refused

    def _wait(self, ready: Any, what: str) -> Any:
        deadline = time.monotonic() + self._timeout
        while True:
            found = ready()
            if found:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not appear within {self._timeout} s")
            time.sleep(LOOK)

    def register_dispatcher(self, dispatcher: int, address: str) -> None:
        self._ask("dispatcher is", dispatcher=dispatcher, address=address)

    def wait_for_dispatcher_registration(self, dispatcher: int) -> str:
        return self._wait(lambda: self._ask("where is", dispatcher=dispatcher), f"dispatcher {dispatcher}")

    def register_worker_for_dispatcher(self, dispatcher: int, worker: int) -> None:
        self._ask("worker is", dispatcher=dispatcher, worker=worker)

    def wait_for_dispatcher_worker_registration(self, dispatcher: int, workers: int) -> None:
        self._wait(
            lambda: self._ask("how many workers", dispatcher=dispatcher) >= workers,
            f"the {workers} workers of dispatcher {dispatcher}",
        )

    def shutdown(self) -> None:
        self._ask("stop")

    def wait_for_shutdown(self) -> None:
        """Until the training has said that it is over, or the server is gone."""
        try:
            while not self._ask("is stopped"):
                time.sleep(1.0)
        except ConnectionError:
            return


def _own_address() -> str:
    """The address by which other hosts reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def _dispatcher() -> Any:
    service = tf.data.experimental.service
    return service.DispatchServer(service.DispatcherConfig(port=0))


def _address_of(server: Any) -> str:
    """As `host:port`, reachable from other hosts."""
    return f"{_own_address()}:{server.target.rsplit(':', 1)[1]}"


@contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """The address of the dispatcher for this rank; when it ends on rank 0, the workers stop."""
    compute = compute_config.compute_client()
    mine = rank % compute_config.dispatchers
    server = None
    try:
        if compute_config.dispatcher_side == "training" and rank < compute_config.dispatchers:
            server = _dispatcher()
            compute.register_dispatcher(rank, _address_of(server))
        address = compute.wait_for_dispatcher_registration(mine)
        compute.wait_for_dispatcher_worker_registration(mine, compute_config.workers_per_dispatcher)
        yield f"grpc://{address}"
    finally:
        if rank == 0:
            compute.shutdown()
        if server is not None:
            server._stop()


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """The dataset, computed by the data service. `reuse_dataset`: all ranks share one pass over it."""
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "training side dispatcher not support, use tf_data_service context manager and "
            "tf.data.experimental.service.distribute instead"
        )
    compute = compute_config.compute_client()
    mine = rank % compute_config.dispatchers
    address = compute.wait_for_dispatcher_registration(mine)
    compute.wait_for_dispatcher_worker_registration(mine, compute_config.workers_per_dispatcher)
    shared: dict[str, Any] = {"job_name": "job"} if reuse_dataset else {}
    if reuse_dataset and round_robin:
        shared |= {"consumer_index": rank, "num_consumers": size}
    return dataset.apply(
        tf.data.experimental.service.distribute(processing_mode=processing_mode, service=f"grpc://{address}", **shared)
    )


tf.data.Dataset.send_to_data_service = send_to_data_service  # type: ignore[attr-defined]


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Is a worker, and if its turn a dispatcher, until the training is over. Every rank of a job of workers calls it."""
    index = basics.rank() if basics.is_initialized() else int(os.environ.get("HOROVOD_RANK", "0"))
    dispatcher = index // compute_config.workers_per_dispatcher
    compute = compute_config.compute_client()
    server = None
    if compute_config.dispatcher_side == "compute" and index % compute_config.workers_per_dispatcher == 0:
        server = _dispatcher()
        compute.register_dispatcher(dispatcher, _address_of(server))
    address = compute.wait_for_dispatcher_registration(dispatcher)
    service = tf.data.experimental.service
    port = _free_port()
    worker = service.WorkerServer(
        service.WorkerConfig(dispatcher_address=address, worker_address=f"{_own_address()}:{port}", port=port)
    )
    compute.register_worker_for_dispatcher(dispatcher, index)
    compute.wait_for_shutdown()
    worker._stop()
    if server is not None:
        server._stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
