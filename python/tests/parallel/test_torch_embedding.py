"""Sharded embeddings against one process with the whole table. Runs on all ranks of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import corro.torch as hvd

ROWS, DIM = 103, 6

MAKERS = [
    (hvd.sparse.SGD(lr=0.3), lambda p: torch.optim.SGD(p, 0.3)),
    (hvd.sparse.Adagrad(lr=0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
    (hvd.sparse.Adam(lr=0.01), lambda p: torch.optim.SparseAdam(p, 0.01)),
]


def batch(step: int, rank: int) -> torch.Tensor:
    """Ids of a rank: some on several ranks, one rank without any, one step with all at one owner."""
    generator = torch.Generator().manual_seed(step * 100 + rank)
    if step == 3 and rank == hvd.size() - 1:
        return torch.empty(0, 4, dtype=torch.int64)
    if step == 4:
        return torch.full((5, 4), 7)
    return torch.randint(0, ROWS, (5, 4), generator=generator) // 3 * 2 % ROWS


SHARDS = ["row", "column", "table", "auto"]


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize(("ours", "theirs"), MAKERS, ids=["sgd", "adagrad", "adam"])
def test_equal_to_one_process(ours: hvd.sparse.RowOptimizer, theirs: object, shard: str) -> None:
    emb = hvd.ShardedEmbedding(ROWS, DIM, optimizer=ours, name="table", shard=shard)  # type: ignore[arg-type]
    whole = torch.nn.Embedding(ROWS, DIM, sparse=True)
    whole.weight.data = emb.full_weight()
    optimizer = theirs(whole.parameters())  # type: ignore[operator]
    scale = torch.linspace(0.5, 2.0, DIM)
    for step in range(8):
        ids = batch(step, hvd.rank())
        if step % 2:
            emb.prefetch(ids)
        got = emb(ids)
        assert torch.allclose(got, whole(ids), rtol=1e-6, atol=1e-6)
        (got.tanh() * scale).sum().backward()
        optimizer.zero_grad()
        # What all ranks looked up, each batch's loss counting as much as its rank does.
        losses = [(whole(batch(step, rank)).tanh() * scale).sum() for rank in range(hvd.size())]
        (torch.stack(losses).sum() / hvd.size()).backward()
        optimizer.step()
    assert torch.allclose(emb.full_weight(), whole.weight.detach(), rtol=1e-6, atol=1e-6)


def test_the_table_is_the_same_for_any_number_of_ranks() -> None:
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    here = hvd.ShardedEmbedding(50, 3, name="alone", process_set=sets[hvd.rank()])
    all_of_us = hvd.ShardedEmbedding(50, 3, name="together")
    assert torch.equal(here.full_weight(), all_of_us.full_weight())
    assert abs(here.weight.mean()) < 0.3
    assert 0.7 < here.weight.std() < 1.3
    for one in sets:
        hvd.remove_process_set(one)


def test_memory_and_rows_are_shared_fairly() -> None:
    emb = hvd.ShardedEmbedding(1000, 4, optimizer=hvd.sparse.Adagrad(rowwise=True))
    assert len(emb.weight) <= -(-1000 // hvd.size())
    assert emb.slots["sum"].shape == (len(emb.weight), 1)
    # The most popular rows, which come first in many tables, are on all ranks.
    dealt = emb._shards.deal(torch.arange(100) * emb._factor % 1000)
    assert dealt.counts.max() <= 1.1 * 100 / hvd.size() + 1


@pytest.mark.parametrize("shard", SHARDS)
def test_a_rank_has_no_more_than_its_part(shard: str) -> None:
    """Rows and what the optimizer remembers of them: of the whole, a part and a tenth of that at most."""
    rows, dim = 6000, 24
    emb = hvd.ShardedEmbedding(rows, dim, optimizer=hvd.sparse.Adam(), shard=shard, name="large")  # type: ignore[arg-type]
    mine = sum(tensor.numel() for tensor in (emb.weight, *emb.slots.values()))
    whole = 3 * rows * dim
    if shard == "table":
        assert mine in (0, whole)
    else:
        assert mine <= 1.1 * whole / hvd.size()
    counts = hvd.allgather(torch.tensor([mine]), name="counts")
    assert int(counts.sum()) == whole


def test_the_same_bits_on_any_number_of_ranks() -> None:
    """Twelve micro-batches, dealt to one rank or to all: each row's gradients are added in their order."""
    n, at_once = hvd.size(), 12
    groups = [list(range(size)) for size in (1, 2, 3, 4) if size <= n]
    sets = [hvd.add_process_set(ranks) if len(ranks) < n else hvd.global_process_set for ranks in groups]
    scale = torch.linspace(0.1, 1.9, DIM)
    found = []
    for ranks, over in zip(groups, sets, strict=True):
        if hvd.rank() not in ranks:
            continue
        size, me, mine = len(ranks), hvd.rank(), at_once // len(ranks)
        optimizer = hvd.sparse.Adagrad(lr=0.1)
        options = {"average": False, "micro_batches": mine, "name": f"exact{size}", "process_set": over}
        emb = hvd.ShardedEmbedding(ROWS, DIM, optimizer=optimizer, **options)  # type: ignore[arg-type]
        for step in range(6):
            ids = torch.cat([batch(step + 5, 50 + micro) for micro in range(me * mine, (me + 1) * mine)])
            # Each micro-batch has its own backward pass through what is not shared: here, there is none.
            (emb(ids).tanh() * scale).sum().backward()
        found.append(emb.full_weight())
    for other in found[1:]:
        assert torch.equal(found[0], other)
    for one in sets:
        if one is not hvd.global_process_set:
            hvd.remove_process_set(one)


def test_hot_rows_are_not_asked_for_again() -> None:
    options = {"optimizer": hvd.sparse.SGD(lr=0.1), "init": torch.nn.init.ones_}
    emb = hvd.ShardedEmbedding(1000, 4, cache_rows=8, cache_steps=3, name="hot", **options)  # type: ignore[arg-type]
    exact = hvd.ShardedEmbedding(1000, 4, name="exact", **options)  # type: ignore[arg-type]
    hot = torch.arange(5)
    for step in range(12):
        ids = torch.cat([hot, torch.tensor([100 + step * hvd.size() + hvd.rank()])])
        got, should = emb(ids), exact(ids)
        # Three steps behind at most; every step takes 0.1 off every one of the hot rows.
        assert (got - should).abs().max() <= 0.1 * 3 + 1e-5
        got.sum().backward()
        should.sum().backward()
    assert emb.hot is not None
    assert emb.hot.hits >= 5 * 12 // 2
    # Gradients of cached rows have all come: after the same steps both tables are the same.
    assert torch.allclose(emb.full_weight(), exact.full_weight(), atol=1e-6)


def test_prefetched_ids_must_come() -> None:
    emb = hvd.ShardedEmbedding(50, 2, name="early")
    bag = hvd.ShardedEmbeddingBag({"a": (10, 2), "b": (20, 2)})
    ids = {"a": torch.tensor([[1, 2]]), "b": torch.tensor([[3]])}
    bag.prefetch(ids)
    bag(ids)["a"].sum().backward()
    emb.prefetch(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="prefetched already"):
        emb.prefetch(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="not those that were prefetched"):
        emb(torch.tensor([1, 3]))


def test_nobody_else_touches_the_table() -> None:
    emb = hvd.ShardedEmbedding(20, 2)
    model = torch.nn.ModuleDict({"emb": emb, "top": torch.nn.Linear(2, 1)})
    before = emb.weight.clone()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    assert torch.equal(emb.weight, before)
    model["top"](emb(torch.tensor([hvd.rank(), 19]))).sum().backward()
    optimizer.step()
    assert emb.steps == 1


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_bags(pooling: str) -> None:
    tables = {"user": (40, 4), "item": (30, 4), "shop": (5, 2)}
    bag = hvd.ShardedEmbeddingBag(tables, pooling=pooling, optimizer=hvd.sparse.SGD(lr=0.5))  # type: ignore[arg-type]
    before = {width: table.full_weight() for width, table in bag.by_width.items()}
    # The same id twice in one bag.
    ids = {
        "user": torch.tensor([[1, 1], [hvd.rank(), 3]]),
        "item": torch.tensor([[29], [0]]),
        "shop": torch.tensor([[4, 0, 4], [1, 1, 1]]),
    }
    found = bag(ids)
    for table, numbers in ids.items():
        rows = before[str(tables[table][1])][numbers + bag.offsets[table]]
        assert torch.allclose(found[table], getattr(rows, pooling)(1))
    sum(vectors.sum() for vectors in found.values()).backward()
    after = bag.by_width["2"].full_weight()
    times = 2 if pooling == "sum" else 2 / 3
    assert torch.allclose(after[4], before["2"][4] - 0.5 * times)
    with pytest.raises(ValueError, match=rf"id 5 on rank {hvd.rank()} is not in table 'shop'"):
        bag({**ids, "shop": torch.tensor([[5]])})


@pytest.mark.parametrize(
    ("saved", "loaded"), [("row", "row"), ("row", "column"), ("column", "table"), ("table", "row")]
)
def test_saved_and_loaded(tmp_path: Path, saved: str, loaded: str) -> None:
    folder = hvd.broadcast_object(str(tmp_path))
    options = {"optimizer": hvd.sparse.Adagrad(lr=0.1), "name": "kept"}
    emb = hvd.ShardedEmbedding(ROWS, DIM, shard=saved, **options)  # type: ignore[arg-type]
    emb(torch.arange(10)).sum().backward()
    emb.save(folder)
    kept = emb.full_weight()
    other = hvd.ShardedEmbedding(ROWS, DIM, shard=loaded, seed=5, **options)  # type: ignore[arg-type]
    other.load(folder)
    assert torch.equal(other.full_weight(), kept)
    for table in (emb, other):
        table(torch.arange(5, 15)).square().sum().backward()
    assert torch.equal(other.full_weight(), emb.full_weight())
    # One rank alone loads what all have saved.
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    mine = hvd.ShardedEmbedding(ROWS, DIM, seed=6, process_set=sets[hvd.rank()], **options)  # type: ignore[arg-type]
    mine.load(folder)
    assert torch.equal(mine.full_weight(), kept)
    for one in sets:
        hvd.remove_process_set(one)


def test_wrong_ids_are_named() -> None:
    emb = hvd.ShardedEmbedding(10, 2, name="items")
    for wrong in (10, -1):
        with pytest.raises(ValueError, match=rf"id {wrong} on rank {hvd.rank()} is not in table 'items'"):
            emb(torch.tensor([0, wrong]))
    with pytest.raises(ValueError, match="int64"):
        emb(torch.tensor([0.5]))
    with pytest.raises(ValueError, match="shard is"):
        hvd.ShardedEmbedding(10, 2, shard="corner")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="whole row"):
        hvd.ShardedEmbedding(10, 64, shard="column", optimizer=hvd.sparse.Adagrad(rowwise=True))
