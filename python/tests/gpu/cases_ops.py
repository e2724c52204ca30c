"""Every operation, against arithmetic on the CPU."""

from __future__ import annotations

import torch
from each import each
from gpu import DEVICE, DTYPES, everyone, numbers, reduced, same, serves

import corro.torch as hvd

OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]
# Nothing, one, an odd number, more than a megabyte.
LENGTHS = [0, 1, 1037, 300_001]


@each(op=OPS, dtype=DTYPES)
def test_allreduce(op, dtype):
    if not serves(op, dtype):
        return
    if op is hvd.Average and dtype.is_floating_point and hvd.size() & (hvd.size() - 1):
        return
    for length in LENGTHS:
        wanted = reduced(op, everyone(dtype, length))
        mine = numbers(dtype, length).to(DEVICE)
        same(hvd.allreduce(mine, op=op), wanted)
        same(mine, numbers(dtype, length))
        in_place = mine.clone()
        assert hvd.allreduce_(in_place, op=op) is in_place
        same(in_place, wanted)


@each(dtype=DTYPES)
def test_grouped_allreduce(dtype):
    if not serves(hvd.Sum, dtype):
        return
    sizes = [3, 0, 500, 70_000, 1, 300_001]
    tensors = [numbers(dtype, size).to(DEVICE) for size in sizes]
    for found, size in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), sizes, strict=True):
        same(found, reduced(hvd.Sum, everyone(dtype, size)))


def test_bool_is_moved_and_reduced_where_it_can_be():
    mine = numbers(torch.uint8, 100).bool().to(DEVICE)
    wanted = torch.cat([x.bool() for x in everyone(torch.uint8, 100)])
    same(hvd.allgather(mine), wanted)
    same(hvd.broadcast(mine, hvd.size() - 1), everyone(torch.uint8, 100)[-1].bool())


@each(dtype=DTYPES)
def test_allgather_of_unequal_rows(dtype):
    for more in (0, 40_000):
        rows = [(2 * rank + 1) % 4 + more for rank in range(hvd.size())]
        parts = [numbers(dtype, count, 3, rank=rank) for rank, count in enumerate(rows)]
        same(hvd.allgather(parts[hvd.rank()].to(DEVICE)), torch.cat(parts))
        twice = hvd.grouped_allgather([parts[hvd.rank()].to(DEVICE)] * 2)
        for found in twice:
            same(found, torch.cat(parts))


@each(dtype=DTYPES)
def test_broadcast(dtype):
    for length in LENGTHS:
        for root in (0, hvd.size() - 1):
            wanted = numbers(dtype, length, rank=root)
            mine = numbers(dtype, length).to(DEVICE)
            same(hvd.broadcast(mine, root), wanted)
            hvd.broadcast_(mine, root)
            same(mine, wanted)


@each(dtype=DTYPES)
def test_alltoall(dtype):
    size, me = hvd.size(), hvd.rank()
    for scale in (1, 20_000):
        rows = [[(a + 2 * b) % 3 * scale for b in range(size)] for a in range(size)]
        parts = [list(torch.split(numbers(dtype, sum(rows[a]), 2, rank=a), rows[a])) for a in range(size)]
        splits = torch.tensor(rows[me], dtype=torch.int32)
        found, received = hvd.alltoall(numbers(dtype, sum(rows[me]), 2).to(DEVICE), splits)
        same(found, torch.cat([parts[a][me] for a in range(size)]))
        assert received.tolist() == [rows[a][me] for a in range(size)]
    even = numbers(dtype, 4 * size).to(DEVICE)
    same(hvd.alltoall(even), torch.cat([x[4 * me : 4 * me + 4] for x in everyone(dtype, 4 * size)]))


@each(dtype=DTYPES)
def test_reducescatter(dtype):
    if not serves(hvd.Sum, dtype):
        return
    size, me = hvd.size(), hvd.rank()
    for rows in (size, 2 * size + 1, 70_000 * size, 70_000 * size + 1):
        whole = reduced(hvd.Sum, everyone(dtype, rows, 2))
        counts = [rows // size + (rank < rows % size) for rank in range(size)]
        begin = sum(counts[:me])
        wanted = whole[begin : begin + counts[me]]
        mine = numbers(dtype, rows, 2).to(DEVICE)
        same(hvd.reducescatter(mine, op=hvd.Sum), wanted)
        for found in hvd.grouped_reducescatter([mine, mine], op=hvd.Sum):
            same(found, wanted)


@each(dtype=[torch.float16, torch.float32, torch.float64])
def test_adasum_of_the_same_is_the_same(dtype):
    size = hvd.size()
    if size & (size - 1) or not serves(hvd.Adasum, dtype):
        return
    mine = numbers(dtype, 1000, rank=0).to(DEVICE)
    same(hvd.allreduce(mine, op=hvd.Adasum), mine)


def test_many_at_once_in_any_order():
    """More operations than any pool has places for, taken back in another order."""
    handles = [(i, hvd.allreduce_async(torch.full((i + 1,), float(i), device=DEVICE), op=hvd.Sum)) for i in range(200)]
    for i, handle in reversed(handles):
        same(hvd.synchronize(handle), torch.full((i + 1,), float(i * hvd.size())))


def test_poll_says_when_the_result_is_there():
    handle = hvd.allreduce_async(torch.ones(1000, device=DEVICE), op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    same(hvd.synchronize(handle), torch.full((1000,), float(hvd.size())))


def test_process_sets():
    size, me = hvd.size(), hvd.rank()
    first = hvd.add_process_set([0])
    rest = hvd.add_process_set(list(range(1, size)))
    try:
        for length in (10, 300_000):
            mine = torch.full((length,), float(me + 1), device=DEVICE)
            own = first if me == 0 else rest
            wanted = 1.0 if me == 0 else float(sum(range(2, size + 1)))
            same(hvd.allreduce(mine, op=hvd.Sum, process_set=own), torch.full((length,), wanted))
            total = float(sum(range(1, size + 1)))
            same(hvd.allreduce(mine, op=hvd.Sum, process_set=hvd.global_process_set), torch.full((length,), total))
            members = [0] if me == 0 else list(range(1, size))
            wanted = torch.cat([torch.full((length,), float(m + 1)) for m in members])
            same(hvd.allgather(mine, process_set=own), wanted)
    finally:
        for process_set in (first, rest):
            hvd.remove_process_set(process_set)


def test_join_brings_zeros():
    # Rank 0 has a batch more than the others.
    found = []
    for _ in range(2 if hvd.rank() == 0 else 1):
        found.append(hvd.allreduce(torch.ones(400_000, device=DEVICE), op=hvd.Sum, name="joined"))
    hvd.join()
    same(found[0], torch.full((400_000,), float(hvd.size())))
    if hvd.rank() == 0:
        same(found[1], torch.ones(400_000))


def test_objects():
    everything = hvd.allgather_object({"rank": hvd.rank(), "tensor": torch.full((3,), hvd.rank(), device=DEVICE)})
    assert [one["rank"] for one in everything] == list(range(hvd.size()))
    for rank, one in enumerate(everything):
        same(one["tensor"], torch.full((3,), rank))
    told = hvd.broadcast_object({"lr": 0.5} if hvd.rank() == 0 else None, 0)
    assert told == {"lr": 0.5}


def test_sparse():
    indices = torch.tensor([[0, hvd.rank() + 1]])
    mine = torch.sparse_coo_tensor(indices, torch.ones(2, 4), (hvd.size() + 1, 4), check_invariants=True).to(DEVICE)
    result = hvd.sparse_allreduce_async(mine, name="sparse", op=hvd.Sum)
    result = (result() if callable(result) else hvd.synchronize(result)).to_dense()
    wanted = torch.ones(hvd.size() + 1, 4)
    wanted[0] = hvd.size()
    same(result, wanted)


@each(dtype=[torch.float32, torch.int64])
def test_gathers_of_sizes_that_change_on_one_rank(dtype):
    """So many of one size that it becomes a plan; then one rank brings more rows, and then all have to find that out."""
    counts = [7] * 20 + [9, 7, 7, 3, 0] + [7] * 20 + [40_000, 7]
    for step, rows in enumerate(counts):
        of = [rows if rank == step % hvd.size() else 7 for rank in range(hvd.size())]
        mine = numbers(dtype, 50_000, 3)[: of[hvd.rank()]].to(DEVICE)
        wanted = torch.cat([x[:n] for x, n in zip(everyone(dtype, 50_000, 3), of, strict=True)])
        same(hvd.allgather(mine, name="sizes that change"), wanted)
