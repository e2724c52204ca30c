"""What every front must do, written once: a case takes a front and runs on all ranks of a job.

Each compares with numpy's answer, computed from what every rank is known to hold.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

CASES: list[Callable[[Any], None]] = []
# What a front must have for a case, where that is not all of them.
NEEDS: dict[str, str] = {}


def case(function: Callable[[Any], None]) -> Callable[[Any], None]:
    CASES.append(function)
    return function


def needs(what: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Marks a case for fronts that have `what`: "handles", operations "in place", "adasum", or a place for the result,
    "out".
    """

    def mark(function: Callable[[Any], None]) -> Callable[[Any], None]:
        NEEDS[function.__name__] = what
        return function

    return mark


def cases_for(front: Any) -> list[Callable[[Any], None]]:
    return [case for case in CASES if NEEDS.get(case.__name__) in (None, *front.has)]


def everyone(front: Any, make: Callable[[int], Any]) -> list[Any]:
    """What `make(rank)` gives for each rank of the job."""
    return [make(rank) for rank in range(front.hvd.size())]


def check(front: Any, result: Any, wanted: Any) -> None:
    array = front.array(result)
    np.testing.assert_allclose(array.astype(np.float64), np.asarray(wanted, np.float64), rtol=1e-2)
    assert array.shape == np.shape(wanted)


@case
def allreduce_of_every_dtype(front: Any) -> None:
    hvd = front.hvd
    for dtype in front.dtypes:
        parts = everyone(front, lambda rank: np.arange(17) % 5 + rank)
        tensor = front.tensor(parts[hvd.rank()], dtype)
        check(front, hvd.allreduce(tensor, op=hvd.Sum, name=f"sum.{dtype}"), sum(parts))
        check(front, hvd.allreduce(tensor, op=hvd.Min), np.min(parts, axis=0))
        check(front, hvd.allreduce(tensor, op=hvd.Max), np.max(parts, axis=0))
        check(front, tensor, parts[hvd.rank()])


@case
def average_divides_by_the_ranks_and_truncates_integers(front: Any) -> None:
    hvd, size = front.hvd, front.hvd.size()
    check(front, hvd.allreduce(front.tensor([hvd.rank()] * 3)), [(size - 1) / 2] * 3)
    total = sum(-7 + rank for rank in range(size))
    check(front, hvd.allreduce(front.tensor([-7 + hvd.rank()], "int64")), [int(total / size)])


@case
def scale_factors_come_before_and_after(front: Any) -> None:
    hvd, size = front.hvd, front.hvd.size()
    scaled = hvd.allreduce(front.tensor([4.0]), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    check(front, scaled, [4.0 * 0.5 * size * 3.0])
    # Integers truncate at each step: 3 * 0.5 -> 1.
    check(front, hvd.allreduce(front.tensor([3], "int32"), op=hvd.Sum, prescale_factor=0.5), [size])


@case
@needs("in place")
def product_and_in_place(front: Any) -> None:
    hvd = front.hvd
    tensor = front.tensor([2.0, hvd.rank() + 1.0])
    same = hvd.allreduce_(tensor, op=hvd.Product)
    assert same is tensor
    check(front, tensor, [2.0 ** hvd.size(), np.prod(np.arange(1.0, hvd.size() + 1))])


@case
@needs("out")
def results_go_where_they_are_wanted(front: Any) -> None:
    hvd = front.hvd
    # The longer one is long enough to be written past the caches.
    for length in (3, 10 << 20):
        tensor, out = front.tensor(np.full(length, hvd.rank() + 1.0)), front.tensor(np.zeros(length))
        for reduce in (hvd.allreduce, lambda *args, **kwargs: hvd.synchronize(hvd.allreduce_async(*args, **kwargs))):
            out[...] = 0
            assert reduce(tensor, op=hvd.Sum, out=out) is out
            check(front, out, np.full(length, sum(range(1, hvd.size() + 1))))
            check(front, tensor, np.full(length, hvd.rank() + 1.0))
    check(front, hvd.allreduce(tensor, op=hvd.Max, out=tensor), np.full(length, hvd.size()))
    wrong = [out[1:], out[::2], out.astype("float64"), tuple(out[:3]), tensor[:-1]]
    for out, shape in zip(wrong, [tensor, tensor[::2], tensor, tensor[:3], tensor[1:]], strict=True):
        with pytest.raises(ValueError, match=r"^out must"):
            hvd.allreduce(shape, out=out)
    works(front)


@case
def scalars_and_empty_tensors(front: Any) -> None:
    hvd = front.hvd
    check(front, hvd.allreduce(front.tensor(2.5), op=hvd.Sum), 2.5 * hvd.size())
    check(front, hvd.allreduce(front.tensor([]), op=hvd.Sum), [])
    check(front, hvd.allgather(front.tensor(np.zeros((0, 3)))), np.zeros((0, 3)))
    check(front, hvd.broadcast(front.tensor(7.0 if hvd.rank() == 0 else 0.0), 0), 7.0)


@case
@needs("handles")
def asynchronous_operations_in_any_order(front: Any) -> None:
    hvd = front.hvd
    order = list(range(12)) if hvd.rank() % 2 else list(reversed(range(12)))
    handles = {i: hvd.allreduce_async(front.tensor([float(i)]), op=hvd.Sum, name=f"any.{i}") for i in order}
    for i in range(12):
        check(front, hvd.synchronize(handles[i]), [float(i * hvd.size())])
    assert hvd.synchronize(handles[0]) is None
    with pytest.raises(ValueError, match="handle"):
        hvd.poll(handles[0])


@case
@needs("handles")
def poll_becomes_true(front: Any) -> None:
    hvd = front.hvd
    handle = hvd.allreduce_async_(front.tensor([1.0] * 1000), op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    check(front, hvd.synchronize(handle), [float(hvd.size())] * 1000)


@case
@needs("handles")
def poll_right_after_submitting_says_not_yet(front: Any) -> None:
    hvd = front.hvd
    # Programs tell an asynchronous operation from another by it, also where a rank is alone. Not after the pause of a
    # busy machine, hence several.
    handles = [hvd.allreduce_async(front.tensor([1.0]), op=hvd.Sum) for _ in range(20)]
    answers = []
    for handle in handles:
        answers.append(hvd.poll(handle))
        hvd.synchronize(handle)
    assert not all(answers)


@case
def groups_complete_together(front: Any) -> None:
    hvd, size = front.hvd, front.hvd.size()
    shapes = [(3,), (2, 2), ()]
    reduced = hvd.grouped_allreduce([front.tensor(np.full(shape, 2.0)) for shape in shapes], op=hvd.Sum)
    assert isinstance(reduced, list)
    for tensor, shape in zip(reduced, shapes, strict=True):
        check(front, tensor, np.full(shape, 2.0 * size))
    if "in place" in front.has:
        tensors = [front.tensor([1.0]), front.tensor([2.0])]
        same = hvd.grouped_allreduce_(tensors, op=hvd.Sum, name="pair")
        assert same[0] is tensors[0]
        check(front, same[1], [2.0 * size])
    rows = hvd.rank() + 1
    gathered = hvd.grouped_allgather([front.tensor(np.full((rows, 2), float(hvd.rank()))), front.tensor([1.0])])
    check(front, gathered[0], np.concatenate(everyone(front, lambda r: np.full((r + 1, 2), float(r)))))
    check(front, gathered[1], np.ones(size))
    scattered = hvd.grouped_reducescatter([front.tensor(np.ones((size, 2))), front.tensor(np.ones(size))], op=hvd.Sum)
    check(front, scattered[0], np.full((1, 2), size))


@case
def allgather_with_different_rows(front: Any) -> None:
    hvd = front.hvd
    for dtype in front.dtypes:
        parts = everyone(front, lambda rank: np.full((rank * 2, 3), rank))
        check(front, hvd.allgather(front.tensor(parts[hvd.rank()], dtype)), np.concatenate(parts))


@case
def broadcast_from_every_root(front: Any) -> None:
    hvd = front.hvd
    for root in range(hvd.size()):
        tensor = front.tensor(np.full((4, 2), float(hvd.rank())))
        check(front, hvd.broadcast(tensor, root), np.full((4, 2), float(root)))
        check(front, tensor, np.full((4, 2), float(hvd.rank())))
        if "in place" in front.has:
            assert hvd.broadcast_(tensor, root, name="in place") is tensor
            check(front, tensor, np.full((4, 2), float(root)))


@case
def alltoall_equal_and_unequal(front: Any) -> None:
    hvd, size, me = front.hvd, front.hvd.size(), front.hvd.rank()
    sent = np.arange(size) + 100.0 * me
    check(front, hvd.alltoall(front.tensor(sent)), [100.0 * rank + me for rank in range(size)])
    # Rank r sends i + 1 rows to rank i, and keeps one row back.
    splits = [i + 1 for i in range(size)]
    rows = np.full((sum(splits) + 1, 2), float(me))
    output, received = hvd.alltoall(front.tensor(rows), splits)
    check(front, output, np.concatenate([np.full((me + 1, 2), float(rank)) for rank in range(size)]))
    check(front, received, [me + 1] * size)
    nothing, _ = hvd.alltoall(front.tensor(rows), [0] * size)
    check(front, nothing, np.zeros((0, 2)))


@case
def reducescatter_deals_rows(front: Any) -> None:
    hvd, size, me = front.hvd, front.hvd.size(), front.hvd.rank()
    for rows in (size * 2, size + 1, 1):
        whole = np.arange(rows * 2.0).reshape(rows, 2)
        each, extra = divmod(rows, size)
        start = me * each + min(me, extra)
        mine = whole[start : start + each + (me < extra)]
        check(front, hvd.reducescatter(front.tensor(whole), op=hvd.Sum), mine * size)
        check(front, hvd.reducescatter(front.tensor(whole)), mine)


@case
@needs("handles")
def a_tensor_larger_than_a_page_and_the_fusion_of_many(front: Any) -> None:
    hvd = front.hvd
    big = np.arange(300_000, dtype=np.float32)
    check(front, hvd.allreduce(front.tensor(big), op=hvd.Sum), big * hvd.size())
    handles = [hvd.allreduce_async(front.tensor([float(i)] * (i + 1)), op=hvd.Sum) for i in range(100)]
    for i, handle in enumerate(handles):
        check(front, hvd.synchronize(handle), [float(i * hvd.size())] * (i + 1))


@case
@needs("handles")
def more_unnamed_tensors_than_there_are_numbers(front: Any) -> None:
    hvd = front.hvd
    handles = [hvd.allreduce_async(front.tensor([float(i)]), op=hvd.Sum) for i in range(600)]
    for i, handle in enumerate(handles):
        check(front, hvd.synchronize(handle), [float(i * hvd.size())])


@case
def objects(front: Any) -> None:
    hvd = front.hvd
    for root in range(hvd.size()):
        mine = {"rank": hvd.rank()} if hvd.rank() % 2 else ["rank", hvd.rank()]
        got = hvd.broadcast_object(mine, root)
        assert got == ({"rank": root} if root % 2 else ["rank", root])
    assert hvd.allgather_object("x" * hvd.rank()) == ["x" * rank for rank in range(hvd.size())]


_CHILD = """
import sys
import corro.numpy as hvd

assert not hvd.is_initialized()
try:
    hvd.init()
except ValueError as error:
    sys.exit(f"told: {error}")
"""


def _init_in_a_child(answers: Any) -> None:
    import corro.numpy as hvd

    try:
        hvd.init()
    except ValueError as error:
        answers.put(str(error))
    else:
        answers.put("joined")


@case
def processes_that_a_rank_starts_are_no_ranks(front: Any) -> None:
    hvd = front.hvd
    if hvd.size() == 1:
        return
    holder = f"held by process {os.getpid()} on "
    child = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 1, child.stderr
    assert "told: " in child.stderr, child.stderr
    assert holder in child.stderr, child.stderr
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.SimpleQueue()
    worker = spawn.Process(target=_init_in_a_child, args=(answers,))
    worker.start()
    told = answers.get()
    worker.join(timeout=120)
    assert holder in told, told
    assert "__main__" in told, told
    check(front, hvd.allreduce(front.tensor([1.0]), op=hvd.Sum), [float(hvd.size())])


class _Ran:
    """Notes that it was unpickled."""

    times = 0

    def __reduce__(self) -> Any:
        return (_count, ())


def _count() -> str:
    _Ran.times += 1
    return "it ran"


@case
def objects_that_were_changed_on_their_way_are_not_unpickled(front: Any) -> None:
    hvd = front.hvd
    if hvd.size() == 1:
        return
    from corro._front import objects

    native_run = objects._native.run

    def meddle(operation: str, view: Any, output: Any, *rest: Any, **options: Any) -> Any:
        result = native_run(operation, view, output, *rest, **options)
        if operation == "broadcast" and rest[1].endswith(".data") and hvd.rank() != 0:
            address, (length,), *_ = output
            bytes_there = (ctypes.c_ubyte * length).from_address(address)
            # Somewhere in the pickle; in its proof; in its last byte.
            bytes_there[{"a": 5, "b": length - 20, "c": length - 33}[rest[1][0]]] ^= 1
        return result

    objects._native = _Meddled(objects._native, meddle)
    try:
        before = _Ran.times
        for name in "abc":
            if hvd.rank() == 0:
                hvd.broadcast_object(_Ran(), 0, name)
            else:
                with pytest.raises(hvd.HorovodInternalError, match=f"rank 0 sent as .{name}.*not unpickled"):
                    hvd.broadcast_object(None, 0, name)
        assert _Ran.times == before
    finally:
        objects._native = objects._native.native
    assert hvd.broadcast_object("whole", 0, "a") == "whole"


class _Meddled:
    """The native module, but for `run`."""

    def __init__(self, native: Any, run: Any) -> None:
        self.native, self.run = native, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)


@case
def join_contributes_zeros(front: Any) -> None:
    hvd, size = front.hvd, front.hvd.size()
    for _ in range(2):
        if hvd.rank() != size - 1:
            left = hvd.allreduce(front.tensor([1.0]), op=hvd.Sum, name="others")
            check(front, left, [size - 1.0])
        last = hvd.join()
        assert 0 <= last < size
        assert hvd.allgather_object(last) == [last] * size


@case
def other_operations_fail_while_somebody_has_joined(front: Any) -> None:
    hvd = front.hvd
    if hvd.rank() != 0:
        with pytest.raises(hvd.HorovodInternalError, match="is not supported with Join at this time"):
            hvd.allgather(front.tensor([1.0]), name="with join")
    hvd.join()
    works(front)


@case
def barrier(front: Any) -> None:
    front.hvd.barrier()


def works(front: Any) -> None:
    """After any mistake, the next operation must be fine. It has a name, since ranks may have counted differently."""
    check(front, front.hvd.allreduce(front.tensor([1.0]), op=front.hvd.Sum, name="works"), [front.hvd.size()])


@case
def different_shapes(front: Any) -> None:
    hvd = front.hvd
    with pytest.raises(hvd.HorovodInternalError, match=r"Mismatched .* tensor shapes"):
        hvd.allreduce(front.tensor([1.0] * (17 + hvd.rank())), name="shapes")
    works(front)
    with pytest.raises(hvd.HorovodInternalError, match=r"Mismatched .* tensor shapes"):
        hvd.allgather(front.tensor(np.zeros((2, 2 + hvd.rank()))), name="columns")
    works(front)


@case
def different_dtypes(front: Any) -> None:
    hvd = front.hvd
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched data types"):
        hvd.allreduce(front.tensor([1], "int32" if hvd.rank() % 2 else "float32"), name="dtypes")
    works(front)


@case
def different_operations_ops_and_factors(front: Any) -> None:
    hvd, odd = front.hvd, front.hvd.rank() % 2
    tensor = front.tensor([1.0])
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched reduction operation"):
        hvd.allreduce(tensor, op=hvd.Sum if odd else hvd.Max, name="ops")
    works(front)
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched prescale and/or postscale factors"):
        hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=1.0 + odd, name="factors")
    works(front)


@case
def different_roots(front: Any) -> None:
    hvd = front.hvd
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched BROADCAST root ranks"):
        hvd.broadcast(front.tensor([1.0]), hvd.rank(), name="roots")
    works(front)


@case
def a_root_that_does_not_exist(front: Any) -> None:
    hvd = front.hvd
    for root in (hvd.size(), -1):
        with pytest.raises(ValueError, match="invalid root rank"):
            hvd.broadcast(front.tensor([1.0]), root, name="no root")
    works(front)


@case
@needs("handles")
def a_name_in_flight_twice(front: Any) -> None:
    hvd = front.hvd
    if hvd.rank() == 0:
        first = hvd.allreduce_async(front.tensor([1.0]), op=hvd.Sum, name="twice")
        with pytest.raises(ValueError, match="same name as another tensor that is currently being processed"):
            hvd.allreduce_async(front.tensor([1.0]), op=hvd.Sum, name="twice")
        hvd.broadcast_object(None, 0, "go on")
    else:
        # The others come later, so that the first is certainly still in flight.
        hvd.broadcast_object(None, 0, "go on")
        first = hvd.allreduce_async(front.tensor([1.0]), op=hvd.Sum, name="twice")
    check(front, hvd.synchronize(first), [hvd.size()])
    hvd.allgather_object("in line again", "in line")


@case
def wrong_splits(front: Any) -> None:
    hvd, size = front.hvd, front.hvd.size()
    tensor = front.tensor(np.ones((size * 2, 2)))
    for splits, text in (
        ([1] * (size + 1), "does not equal number of workers"),
        ([size * 3] + [0] * (size - 1), "greater than the first dimension"),
        ([-1] + [1] * (size - 1), "negative"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.alltoall(tensor, splits)
    with pytest.raises(ValueError, match=r"divisible|multiple"):
        hvd.alltoall(front.tensor(np.ones(size + 1)))
    works(front)


@case
@needs("handles")
def scalars_where_rows_are_needed(front: Any) -> None:
    hvd = front.hvd
    for operation in (hvd.alltoall, hvd.reducescatter):
        with pytest.raises(ValueError, match="rank-zero tensor"):
            operation(front.tensor(1.0))
    handle = hvd.allgather_async(front.tensor(1.0), name="scalar")
    with pytest.raises(hvd.HorovodInternalError, match="a rank-zero tensor"):
        hvd.synchronize(handle)
    works(front)


@case
def wrong_arguments(front: Any) -> None:
    hvd = front.hvd
    tensor = front.tensor([1.0])
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)
    with pytest.warns(DeprecationWarning):
        check(front, hvd.allreduce(tensor, average=False), [hvd.size()])
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        with pytest.raises(hvd.HorovodInternalError):
            hvd.reducescatter(tensor, op=op)
    with pytest.raises(ValueError, match="reduce op"):
        hvd.allreduce(tensor, op=17)
    for operation in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        if front.empty_groups:
            assert operation([]) == []
            continue
        with pytest.raises(ValueError, match="at least one"):
            operation([])
    works(front)


@case
def process_sets(front: Any) -> None:
    hvd, size, me = front.hvd, front.hvd.size(), front.hvd.rank()
    evens = hvd.add_process_set(range(0, size, 2))
    odds = hvd.add_process_set(hvd.ProcessSet(range(1, size, 2)))
    mine, other = (odds, evens) if me % 2 else (evens, odds)
    assert mine.included()
    assert not other.included()
    assert mine.size() == len(mine.ranks)
    assert mine.rank() == me // 2
    check(front, hvd.allreduce(front.tensor([1.0]), op=hvd.Sum, process_set=mine), [mine.size()])
    check(front, hvd.allgather(front.tensor([float(me)]), process_set=mine, name="x"), mine.ranks)
    root = mine.ranks[-1]
    check(front, hvd.broadcast(front.tensor([float(me)]), root, process_set=mine), [root])
    whole = front.tensor(np.arange(4.0) + me)
    rows = front.array(hvd.reducescatter(whole, op=hvd.Sum, process_set=mine, name="rs"))
    assert len(rows) == 4 // mine.size() + (mine.rank() < 4 % mine.size())
    hvd.barrier(process_set=mine)
    with pytest.raises(ValueError, match="is not a member of the provided process set"):
        hvd.allreduce(front.tensor([1.0]), process_set=other)
    with pytest.raises(ValueError, match="not part of provided process set"):
        other.rank()
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set(list(range(0, size, 2)))
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set(range(size))
    with pytest.raises(ValueError, match="different ranks"):
        hvd.add_process_set([0, size])
    if size > 2:
        with pytest.raises(ValueError, match="invalid root rank"):
            hvd.broadcast(front.tensor([1.0]), other.ranks[0], process_set=mine)
    with pytest.raises(NotImplementedError):
        hvd.allreduce(front.tensor([1.0]), op=hvd.Adasum, process_set=mine)
    assert hvd.remove_process_set(evens)
    assert hvd.remove_process_set(odds)
    assert not hvd.remove_process_set(odds)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises((ValueError, TypeError), match="not been registered"):
        hvd.allreduce(front.tensor([1.0]), process_set=evens)
    works(front)


@case
@needs("adasum")
def adasum_of_equal_vectors_is_that_vector(front: Any) -> None:
    hvd = front.hvd
    check(front, hvd.allreduce(front.tensor([3.0, 4.0]), op=hvd.Adasum), [3.0, 4.0])
