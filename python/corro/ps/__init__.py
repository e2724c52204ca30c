"""Parameter servers: who keeps, sums and updates parameters for workers that need not wait for each other.

`Store` is a store of named arrays at the servers of a job: those that `corro run --servers` has started, or, without them,
one in a thread of every rank. `hvd.DistributedOptimizer(..., mode="ps")` stands on it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from corro import _native
from corro._front.basics import (
    after_shutdown,
    before_leaving,
    before_restart,
    cross_size,
    is_initialized,
    local_size,
    rank,
)
from corro._front.objects import allgather_object
from corro._front.process_sets import ProcessSet, global_process_set
from corro.ps._memory import Array, Memory, memory_of, new_like, numbers, place_of, room_of

__all__ = ["BSP", "SSP", "Adagrad", "Adam", "AdamW", "Async", "Pulled", "RowAdagrad", "SGD", "Store"]  # noqa: RUF022 - by kind


@dataclass(frozen=True)
class BSP:
    """In rounds: what is pulled has one push of every worker in it, added in the order of ranks. The default.

    Example:
        >>> store = corro.ps.Store(consistency=corro.ps.BSP())
        >>> store.close()
    """


@dataclass(frozen=True)
class SSP:
    """A bound: a worker that begins a step is at most `bound` steps ahead of the slowest, and reads its own pushes at once.

    A short delay of one worker then stops nobody. A machine that is always slower still slows down all.

    Example:
        >>> store = corro.ps.Store(consistency=corro.ps.SSP(3))
        >>> store.close()
    """

    bound: int


@dataclass(frozen=True)
class Async:
    """No worker waits for another. With `staleness_lr`, an update that is d versions late is multiplied by 1 / (1 + d).

    Example:
        >>> store = corro.ps.Store(consistency=corro.ps.Async(staleness_lr=True))
        >>> store.close()
    """

    staleness_lr: bool = True


@dataclass(frozen=True)
class SGD:
    """PyTorch's SGD, at the servers.

    Example:
        >>> corro.ps.SGD(lr=0.1, momentum=0.9).name
        'sgd'
    """

    lr: float = 0.001
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def name(self) -> str:
        """What servers call it."""
        return "sgd"


@dataclass(frozen=True)
class Adam:
    """PyTorch's Adam, at the servers.

    Example:
        >>> corro.ps.Adam(lr=0.01).beta1
        0.9
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def name(self) -> str:
        """What servers call it."""
        return "adam"


@dataclass(frozen=True)
class AdamW(Adam):
    """PyTorch's AdamW, at the servers.

    Example:
        >>> corro.ps.AdamW().weight_decay
        0.01
    """

    weight_decay: float = 0.01

    @property
    def name(self) -> str:
        """What servers call it."""
        return "adamw"


@dataclass(frozen=True)
class Adagrad:
    """PyTorch's Adagrad, at the servers.

    Example:
        >>> corro.ps.Adagrad(lr=0.1).name
        'adagrad'
    """

    lr: float = 0.01
    eps: float = 1e-10
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0

    @property
    def name(self) -> str:
        """What servers call it."""
        return "adagrad"


@dataclass(frozen=True)
class RowAdagrad:
    """Adagrad that remembers one number for each row: for embeddings.

    Example:
        >>> corro.ps.RowAdagrad(lr=0.1).name
        'row_adagrad'
    """

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    @property
    def name(self) -> str:
        """What servers call it."""
        return "row_adagrad"


Consistency = BSP | SSP | Async
Optimizer = SGD | Adam | AdamW | Adagrad | RowAdagrad
Rule = Literal["sum", "average", "add", "update"]

T = TypeVar("T")

# What was saved, in its folder.
SAVED = "parameters.corro"

# How many stores there were, by epoch and process set: all ranks of a set count alike.
_stores: Counter[tuple[int, int | None]] = Counter()


class Pulled:
    """A value that is on its way. `wait` gives it.

    Example:
        >>> with corro.ps.Store() as store:
        ...     store.init("x", np.ones(2, np.float32))
        ...     handle = store.pull_async("x")
        ...     handle.wait()
        array([1., 1.], dtype=float32)
    """

    def __init__(self, store: Store, key: str, pulled: _native.Pulled) -> None:
        self._store, self._key, self._pulled = store, key, pulled
        # How many workers are in it, in rounds; known once it has come.
        self.contributors = 0

    def done(self) -> bool:
        """Whether `wait` would give it at once."""
        return self._store._client.has_come(self._pulled)

    @overload
    def wait(self, out: None = None) -> Any: ...
    @overload
    def wait(self, out: T) -> T: ...
    def wait(self, out: Any = None) -> Any:
        """The value, in `out` or in a new array."""
        home = new_like(self._store._kinds[self._key]) if out is None else out
        room = room_of(home)
        self.contributors = self._store._client.value(self._pulled, room.memory)
        return room.put_back()


class Store:
    """Named arrays at the servers of this job, for the ranks of a process set, all of which must make it.

    `init` names an array, `push` sends a change of it, `pull` reads it. What a push does is its rule: in rounds (`BSP`)
    the default is "sum", the sum of one push of every worker; otherwise it is "add", to the value. After `set_optimizer`
    it is "update": pushes are gradients. `servers` says which to use: those that the launcher has started ("spare"), one in
    each rank ("colocated"), or both, each with the share that makes the job fastest ("mixed"). By default
    it is mixed if `corro run --server-hosts` has named hosts for them, spare if servers share hosts with ranks, and
    colocated if there are none.

    Example:
        >>> with corro.ps.Store() as store:
        ...     store.init("x", np.zeros(2, np.float32))
        ...     store.pushpull("x", np.ones(2, np.float32)) / hvd.size()
        array([1., 1.], dtype=float32)
    """

    def __init__(
        self,
        process_set: ProcessSet = global_process_set,
        consistency: Consistency | None = None,
        servers: Literal["colocated", "spare", "mixed"] | None = None,
    ) -> None:
        self._kinds: dict[str, tuple[Any, ...]] = {}
        self._optimizer: Optimizer | None = None
        self._consistency = consistency or BSP()
        apart, spare = _native.launched_servers()
        servers = servers or (("mixed" if apart else "spare") if spare else "colocated")
        if servers not in ("colocated", "spare", "mixed"):
            raise ValueError(f'servers is "colocated", "spare" or "mixed", not {servers!r}.')
        if servers != "colocated" and not spare:
            raise ValueError(f"servers={servers!r} needs servers of their own: start the job with corro run --servers.")
        launched = servers != "colocated"
        one_host = cross_size() == 1
        self._server = None if servers == "spare" else _native.ParameterServer(one_host, launched)
        mine = (self._server.addresses if self._server else [], local_size())
        ranks = list(process_set.ranks) if process_set.ranks is not None else [rank()]
        gathered = allgather_object(mine, name="corro.ps.servers", process_set=process_set)
        spare_share, host_share = _native.server_shares(max(cross_size(), 1), len(spare) if launched else 0)
        found = [(addresses, spare_share) for addresses in spare] if launched else []
        found += [(addresses, host_share / at_host) for addresses, at_host in gathered if addresses]
        kind, bound = _kind(self._consistency)
        # The same on all ranks of the set, and for no other store that they make.
        which = (_native.epoch(), process_set.process_set_id)
        _stores[which] += 1
        store = hash((*which, _stores[which])) & (2**63 - 1)
        self._client = _native.StoreClient(store, ranks.index(rank()), len(gathered), kind, bound, found, launched)
        self._open = True
        _open.append(self)

    def init(
        self, key: str, value: Array, rule: Rule | None = None, rows: bool = False, compression: str | None = None
    ) -> None:
        """Names an array. Its first value is that of the set's first rank; the others' only say its shape and dtype.

        With `rows`, some rows of it can be pushed and pulled at a time, and rows that are asked for often spread over
        all servers. Every worker must name the same arrays in the same order. With `compression` ("fp16", "bf16", "int8"
        or "int8 block=128") a float32 array is pushed with fewer bytes, and so are sums on their way back. What a push
        leaves out goes with the next one.

        Example:
            >>> with corro.ps.Store() as store:
            ...     store.init("weights", np.arange(4.0))
            ...     store.pull("weights")
            array([0., 1., 2., 3.])
        """
        memory = memory_of(value)
        if rule is None:
            rule = "update" if self._optimizer else ("sum" if isinstance(self._consistency, BSP) else "add")
        if rows and len(memory.shape) < 2:
            raise ValueError(f"rows=True needs an array of rows; {key!r} has the shape {tuple(memory.shape)}.")
        self._client.init(key, memory.dtype, _rows(memory, rows), rule, rows, memory.place, compression)
        self._kinds[key] = memory.kind

    def push(self, key: str, value: Array, priority: int = 0, lr: float | None = None) -> None:
        """Sends a change of an array, and does not wait: `value` may be used again at once. Lower priorities go first.

        `lr` is a learning rate in place of the optimizer's own; in rounds all workers must say the same.

        Example:
            >>> with corro.ps.Store() as store:
            ...     store.init("x", np.zeros(1, np.float32), rule="average")
            ...     store.push("x", np.ones(1, np.float32))
            ...     store.pull("x")
            array([1.], dtype=float32)
        """
        self._client.push(key, place_of(value, self._kinds, key), priority, lr)

    @overload
    def pull(self, key: str, out: None = None, priority: int = 0) -> Any: ...
    @overload
    def pull(self, key: str, out: T, priority: int = 0) -> T: ...
    def pull(self, key: str, out: Any = None, priority: int = 0) -> Any:
        """The value of an array, in `out` or in a new array. In rounds it waits for those who have not pushed yet.

        Example:
            >>> with corro.ps.Store() as store:
            ...     store.init("x", np.ones(2, np.float32))
            ...     store.pull("x", out=np.empty(2, np.float32))
            array([1., 1.], dtype=float32)
        """
        return self.pull_async(key, priority).wait(out)

    def pull_async(self, key: str, priority: int = 0) -> Pulled:
        """Asks for the value of an array, and does not wait. What this worker has pushed before is in it.

        Example:
            >>> with corro.ps.Store() as store:
            ...     store.init("x", np.ones(2, np.float32))
            ...     store.pull_async("x").wait()
            array([1., 1.], dtype=float32)
        """
        return Pulled(self, key, self._client.pull(key, priority))

    @overload
    def pushpull(self, key: str, value: Array, out: None = None, priority: int = 0) -> Any: ...
    @overload
    def pushpull(self, key: str, value: Array, out: T, priority: int = 0) -> T: ...
    def pushpull(self, key: str, value: Array, out: Any = None, priority: int = 0) -> Any:
        """`push`, then `pull`.

        Example:
            >>> with corro.ps.Store() as store:
            ...     store.init("x", np.zeros(1, np.float32), rule="average")
            ...     store.pushpull("x", np.full(1, hvd.rank(), np.float32)) * 2 + 1 == hvd.size()
            array([ True])
        """
        self.push(key, value, priority)
        return self.pull(key, out, priority)

    def push_rows(self, key: str, ids: Array, value: Array, priority: int = 0, lr: float | None = None) -> None:
        """Sends changes of some rows; changes of the same row add up. In rounds every worker must, even with no rows.

        Example:
            >>> with corro.ps.Store() as store:
            ...     store.init("table", np.zeros((5, 2), np.float32), rule="add", rows=True)
            ...     store.push_rows("table", [3], np.ones((1, 2), np.float32))
            ...     store.pull_rows("table", [3, 0]) / hvd.size()
            array([[1., 1.],
                   [0., 0.]], dtype=float32)
        """
        memory = memory_of(value)
        memory.checked(self._kinds, key, rows=True)
        wanted = numbers(ids)
        self._client.push_rows(key, memory_of(wanted).place, memory.place, priority, lr)

    @overload
    def pull_rows(self, key: str, ids: Array, out: None = None, priority: int = 0) -> Any: ...
    @overload
    def pull_rows(self, key: str, ids: Array, out: T, priority: int = 0) -> T: ...
    def pull_rows(self, key: str, ids: Array, out: Any = None, priority: int = 0) -> Any:
        """Some rows of an array, in the order of `ids`.

        Example:
            >>> with corro.ps.Store() as store:
            ...     store.init("table", np.arange(6.0).reshape(3, 2), rule="add", rows=True)
            ...     store.pull_rows("table", [2, 0])
            array([[4., 5.],
                   [0., 1.]])
        """
        wanted = numbers(ids)
        pulled = self._client.pull_rows(key, memory_of(wanted).place, priority)
        home = new_like(self._kinds[key], rows=len(wanted)) if out is None else out
        room = room_of(home)
        self._client.rows(pulled, room.memory)
        return room.put_back()

    def clock(self) -> None:
        """A step of this worker is over: with a bound, the others may go on as far as it allows.

        Example:
            >>> with corro.ps.Store(consistency=corro.ps.SSP(1)) as store:
            ...     store.clock()
        """
        self._client.clock()

    def barrier(self) -> None:
        """Waits until all workers are here, and what they have pushed before is in what is pulled after.

        Example:
            >>> with corro.ps.Store(consistency=corro.ps.Async()) as store:
            ...     store.init("x", np.zeros(1, np.float32))
            ...     store.push("x", np.ones(1, np.float32))
            ...     store.barrier()
            ...     store.pull("x") == hvd.size()
            array([ True])
        """
        self._client.barrier()

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """From now on servers update float32 arrays with this. One of the same kind with other numbers keeps its state.

        Example:
            >>> with corro.ps.Store() as store:
            ...     store.set_optimizer(corro.ps.SGD(lr=0.5))
            ...     store.init("w", np.ones(1, np.float32))
            ...     store.pushpull("w", np.ones(1, np.float32))
            array([0.5], dtype=float32)
        """
        self._optimizer = optimizer
        named = [(field.name, float(getattr(optimizer, field.name))) for field in fields(optimizer)]
        self._client.set_optimizer(optimizer.name, named)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes all that servers own, the optimizer's memory included, to a folder of the first rank's. All must call it.

        Example:
            >>> with corro.ps.Store() as store:
            ...     store.save(hvd.broadcast_object(tempfile.mkdtemp()))
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._client.save(os.fspath(Path(folder) / SAVED))

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Gives servers what `save` has written, after the same calls of `init`; there may be more or fewer servers now.

        Example:
            >>> with corro.ps.Store() as store:
            ...     folder = hvd.broadcast_object(tempfile.mkdtemp())
            ...     store.save(folder)
            ...     store.load(folder)
        """
        self._client.load(os.fspath(Path(folder) / SAVED))

    def stats(self) -> dict[str, Any]:
        """Bytes that this worker has moved, servers that are lost, and the counters of the others.

        Example:
            >>> with corro.ps.Store() as store:
            ...     store.stats()["lost_servers"]
            []
        """
        servers = [dict(counts) for counts in self._client.stats()]
        received, sent, lost = self._client.traffic()
        return {"bytes_received": received, "bytes_sent": sent, "lost_servers": lost, "servers": servers}

    def close(self) -> None:
        """Leaves the store when all ranks do, so that none is missing if a server is lost just then.

        The end of the program does the same.

        Example:
            >>> store = corro.ps.Store()
            >>> store.close()
        """
        self._end(together=True)

    def _end(self, together: bool) -> None:
        if not self._open:
            return
        self._open = False
        _open.remove(self)
        together = together and is_initialized()
        try:
            self._client.close(together)
        finally:
            if self._server is not None:
                self._server.stop(together)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # One that fails does not wait for the others.
        self._end(together=kind is None)


# Stores live until they are closed, or the job ends: a rank that left when it forgot its store would be missed by the
# others, who may still need the server that is in it.
_open: list[Store] = []


def _close_all() -> None:
    for store in list(_open):
        store.close()


def _end_all() -> None:
    for store in list(_open):
        store._end(together=False)


before_leaving(_close_all)
# Those who are lost don't come to a last meeting.
before_restart(_end_all)
after_shutdown(_end_all)


def _kind(consistency: Consistency) -> tuple[str, int]:
    match consistency:
        case BSP():
            return "bsp", 0
        case SSP(bound):
            if bound < 0:
                raise ValueError("the bound of SSP must be 0 or more: the number of steps that a worker may be ahead.")
            return "ssp", int(bound)
        case Async(staleness_lr):
            return "async", int(staleness_lr)
    raise ValueError(f"consistency must be a BSP, an SSP or an Async, not {consistency!r}.")


# A longer row would be a part of its own; a list is cut as it comes.
_LONG_ROW = 1 << 16


def _rows(memory: Memory, exactly: bool) -> tuple[int, int]:
    """Rows and their width, by which servers cut an array."""
    shape: Sequence[int] = memory.shape
    elements = memory.elements
    width = elements // shape[0] if len(shape) > 1 and shape[0] else 0
    if exactly or (0 < width * memory.itemsize <= _LONG_ROW):
        return shape[0], width
    line = 64 // memory.itemsize
    return (elements // line, line) if elements % line == 0 and elements else (elements, 1)
