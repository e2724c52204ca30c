"""Process sets: subsets of the ranks that run collectives among themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from corro import _native
from corro._environment import flag
from corro._errors import UnregisteredProcessSet
from corro._front import mpi


class ProcessSet:
    """Some of the ranks, which run collectives among themselves: `hvd.allreduce(..., process_set=some)`.

    Usable once registered: by `init(process_sets=[...])` or `add_process_set`. In `init` it may also be made from a
    communicator of mpi4py: each process gives its own, and all sets that result are registered on all ranks. Raises
    `ValueError` for anything else.

    Example:
        >>> some = hvd.ProcessSet([0])
        >>> some.ranks
        [0]
        >>> some.included() == (hvd.rank() == 0)
        True
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        if mpi.is_communicator(ranks_or_comm):
            # Its ranks are known once all have met: `init` asks it.
            self.mpi_comm = ranks_or_comm
            return
        if isinstance(ranks_or_comm, (str, bytes)) or not isinstance(ranks_or_comm, Iterable):
            raise ValueError(f"a ProcessSet is made from a list of ranks, not from {ranks_or_comm!r}.")
        ranks = list(ranks_or_comm)
        for rank in ranks:
            if not hasattr(rank, "__index__") or isinstance(rank, bool):
                raise ValueError(f"the ranks of a ProcessSet must be integers, not {rank!r}.")
        self.ranks = sorted(rank.__index__() for rank in ranks)

    def size(self) -> int | None:
        """How many ranks belong to it; None while it is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's place in the set; None while it is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        world_rank = _native.rank()
        if world_rank not in self.ranks:
            raise ValueError(f"rank {world_rank} is not part of provided process set: {self}")
        return self.ranks.index(world_rank)

    def included(self) -> bool | None:
        """Whether this process belongs to it; None when the ranks are not known yet."""
        return None if self.ranks is None else _native.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


class _GlobalProcessSet(ProcessSet):
    def __init__(self) -> None:
        self.process_set_id = 0

    def __reduce__(self) -> str:
        # There is one; a pickled or copied default argument must not become another.
        return "global_process_set"

    def __deepcopy__(self, memo: object) -> _GlobalProcessSet:
        return self


global_process_set: ProcessSet = _GlobalProcessSet()

_registered: dict[int, ProcessSet] = {}
_dynamic = False
# What `init` was told, so that an elastic job can be told it again.
_given: str | list[ProcessSet] | None = None


def start(wanted: Any) -> None:
    """Called by `init` once the engine runs: registers the sets that were asked for."""
    global _dynamic, _given
    global_process_set.ranks = list(range(_native.size()))
    if isinstance(wanted, str):
        if wanted.lower() != "dynamic":
            raise ValueError(f'process_sets is a list of process sets or "dynamic", not {wanted!r}.')
        _dynamic = True
        _given = wanted
        return
    new = [item if isinstance(item, ProcessSet) else ProcessSet(item) for item in wanted or ()]
    new = [item for item in new if _registered.get(item.process_set_id or 0) is not item]
    if any(item.mpi_comm is not None for item in new):
        new = _of_all_ranks(new)
    seen: list[list[int]] = []
    elastic = flag("ELASTIC")
    for item in new:
        _check(item, seen, elastic)
        seen.append(item.ranks or [])
    for item in new:
        _register(item)
    _given = [*(_given or ()), *new] if new else _given


def has_communicators(wanted: Any) -> bool:
    """Whether any of the sets given to `init` is made from a communicator."""
    items = [] if wanted is None or isinstance(wanted, str) else wanted
    return any(mpi.is_communicator(getattr(item, "mpi_comm", None) or item) for item in items)


def _of_all_ranks(own: list[ProcessSet]) -> list[ProcessSet]:
    """The sets that all ranks have given, in the same order on all: where one has a communicator, others have others."""
    for item in own:
        if item.mpi_comm is not None:
            item.ranks = mpi.members(item.mpi_comm, _native.rank())
    # Of each place in the list, the sets that any rank has there.
    new = []
    for at in range(max(_gather([len(own)]))[0]):
        here = own[at] if at < len(own) else None
        for ranks in sorted({tuple(given) for given in _gather((here.ranks if here else None) or []) if given}):
            new.append(here if here and here.ranks == list(ranks) else ProcessSet(ranks))
    return new


def _gather(numbers: list[int]) -> list[list[int]]:
    """A list of each rank."""
    from corro._front.objects import gather_numbers

    size = _native.size()
    if size == 1:
        return [numbers]
    lengths = gather_numbers([len(numbers)], "process sets: lengths")
    longest = max(lengths)
    padded = numbers + [-1] * (longest - len(numbers))
    flat = gather_numbers(padded, "process sets: ranks") if longest else []
    return [flat[at * longest : at * longest + length] for at, length in enumerate(lengths)]


def stop() -> None:
    """Called by `shutdown`: only the global set outlives the engine, and it has no ranks until the next `init`."""
    global _dynamic, _given
    for item in _registered.values():
        item.process_set_id = None
    _registered.clear()
    global_process_set.ranks = None
    _dynamic = False
    _given = None


def given() -> Any:
    """What `init` was told: for the next `init` of an elastic job, whose sets then have the numbers they had before."""
    return _given


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set of ranks, and gives it. All ranks of the job must call this, in the same order.

    Needs `init(process_sets="dynamic")`; raises `ValueError` without, and for a set that there is already.

    Example:
        >>> hvd.shutdown()
        >>> hvd.init(process_sets="dynamic")
        >>> first = hvd.add_process_set([0])
        >>> first.size()
        1
    """
    item = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if item.mpi_comm is not None:
        raise NotImplementedError("a process set from a communicator can be given to `init` only.")
    _require_dynamic("add_process_set")
    _check(item, [])
    _register(item)
    return item


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregisters a set. All ranks of the job must call this. Gives False if there was nothing to remove.

    Needs `init(process_sets="dynamic")`; raises `ValueError` without.

    Example:
        >>> hvd.shutdown()
        >>> hvd.init(process_sets="dynamic")
        >>> hvd.remove_process_set(hvd.add_process_set([0]))
        True
    """
    _require_dynamic("remove_process_set")
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    removed = _native.remove_process_set(process_set.process_set_id)
    _registered.pop(process_set.process_set_id, None)
    process_set.process_set_id = None
    return removed


def process_set_by_id(set_id: int) -> ProcessSet:
    """The registered set with this id."""
    found = global_process_set if set_id == 0 else _registered.get(set_id)
    if found is None:
        raise UnregisteredProcessSet(f"process set {set_id} does not exist, or has not been registered.")
    return found


def ids_and_ranks() -> dict[int, list[int]]:
    """The registered sets, the global one among them."""
    return {set_id: list(item.ranks or ()) for set_id, item in sorted({0: global_process_set, **_registered}.items())}


def _require_dynamic(what: str) -> None:
    _native.rank()  # raises when not initialised
    if not (_dynamic or flag("DYNAMIC_PROCESS_SETS")):
        raise ValueError(
            f"{what} after init needs dynamic process sets: set HOROVOD_DYNAMIC_PROCESS_SETS=1, "
            f'or call hvd.init(process_sets="dynamic").'
        )


def _check(item: ProcessSet, others: list[list[int]], elastic: bool = False) -> None:
    """Refuses what cannot be a new set, before any rank has been asked anything.

    In an elastic job the ranks may be there again tomorrow: what cannot be used today keeps its number.
    """
    ranks, size = item.ranks or [], _native.size()
    if not ranks or len(set(ranks)) != len(ranks) or ranks[0] < 0 or (ranks[-1] >= size and not elastic):
        raise ValueError(f"{item} is not possible here: it must name one or more different ranks of 0..{size - 1}.")
    taken = [*(known.ranks for known in _registered.values()), *others]
    if ranks in taken or (ranks == list(range(size)) and not elastic):
        raise ValueError(f"a duplicate process set: the ranks {ranks} have a set already.")


def _register(item: ProcessSet) -> None:
    ranks = item.ranks or []
    possible = ranks[-1] < _native.size() and ranks != list(range(_native.size()))
    set_id = _native.add_process_set(ranks) if possible else _native.reserve_process_set(ranks)
    item.process_set_id = set_id
    _registered[set_id] = item
