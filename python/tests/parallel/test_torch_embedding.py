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


@pytest.mark.parametrize(("ours", "theirs"), MAKERS, ids=["sgd", "adagrad", "adam"])
def test_equal_to_one_process(ours: hvd.sparse.RowOptimizer, theirs: object) -> None:
    emb = hvd.ShardedEmbedding(ROWS, DIM, optimizer=ours, name="table")
    whole = torch.nn.Embedding(ROWS, DIM, sparse=True)
    whole.weight.data = emb.full_weight()
    optimizer = theirs(whole.parameters())  # type: ignore[operator]
    scale = torch.linspace(0.5, 2.0, DIM)
    for step in range(8):
        ids = batch(step, hvd.rank())
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
    _, counts, _ = emb.deal(torch.arange(100))
    assert counts.max() <= 1.1 * 100 / hvd.size() + 1


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


def test_saved_and_loaded(tmp_path: Path) -> None:
    folder = hvd.broadcast_object(str(tmp_path))
    emb = hvd.ShardedEmbedding(ROWS, DIM, optimizer=hvd.sparse.Adagrad(lr=0.1), name="kept")
    emb(torch.arange(10)).sum().backward()
    emb.save(folder)
    kept = emb.full_weight()
    other = hvd.ShardedEmbedding(ROWS, DIM, optimizer=hvd.sparse.Adagrad(lr=0.1), name="kept", seed=5)
    other.load(folder)
    assert torch.equal(other.full_weight(), kept)
    assert torch.equal(other.slots["sum"], emb.slots["sum"])
    # One rank alone loads what all have saved.
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    mine = hvd.ShardedEmbedding(
        ROWS, DIM, optimizer=hvd.sparse.Adagrad(lr=0.1), name="kept", seed=6, process_set=sets[hvd.rank()]
    )
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
    with pytest.raises(ValueError, match="not there yet"):
        hvd.ShardedEmbedding(10, 2, shard="column")  # type: ignore[arg-type]
