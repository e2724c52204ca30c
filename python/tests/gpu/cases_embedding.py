"""Sharded embeddings whose table and ids are on the GPU, against one process with the whole table."""

from __future__ import annotations

import tempfile

import torch
from each import each
from gpu import DEVICE, close

import corro.torch as hvd

ROWS, DIM = 103, 6


def batch(step: int, rank: int) -> torch.Tensor:
    """Ids of a rank, on the CPU: many of them on several ranks; in one step the last rank has none."""
    if step == 3 and rank == hvd.size() - 1:
        return torch.empty(0, 4, dtype=torch.int64)
    generator = torch.Generator().manual_seed(step * 100 + rank)
    return torch.randint(0, ROWS, (5 + step, 4), generator=generator) // 3 * 2 % ROWS


@each(shard=["row", "column", "table"], cache_rows=[0, 16])
def test_a_sharded_embedding_is_equal_to_one_process(shard, cache_rows):
    if cache_rows and shard != "row":
        return
    # A row that was asked for in this step is as new as any.
    cache = {"cache_rows": cache_rows, "cache_steps": 1} if cache_rows else {}
    name = f"table by {shard}, {cache_rows}"
    emb = hvd.ShardedEmbedding(ROWS, DIM, optimizer=hvd.sparse.Adagrad(lr=0.1), name=name, shard=shard, **cache)
    emb = emb.to(DEVICE)
    whole = torch.nn.Embedding(ROWS, DIM)
    whole.weight.data = emb.full_weight().cpu()
    optimizer = torch.optim.Adagrad(whole.parameters(), 0.1)
    scale = torch.linspace(0.5, 2.0, DIM)
    for step in range(6):
        ids = batch(step, hvd.rank())
        if step % 2:
            emb.prefetch(ids.to(DEVICE))
        got = emb(ids.to(DEVICE))
        close(got.detach(), whole(ids).detach())
        (got.tanh() * scale.to(DEVICE)).sum().backward()
        optimizer.zero_grad()
        losses = [(whole(batch(step, rank)).tanh() * scale).sum() for rank in range(hvd.size())]
        (torch.stack(losses).sum() / hvd.size()).backward()
        optimizer.step()
    close(emb.full_weight(), whole.weight.detach())


@each(table=["cpu", DEVICE.type], ids=["cpu", DEVICE.type])
def test_vectors_come_to_where_the_ids_are(table, ids):
    emb = hvd.ShardedEmbedding(ROWS, DIM, name=f"{table} for {ids}").to(table)
    wanted = emb.full_weight().cpu()
    mine = batch(0, hvd.rank()).to(ids)
    found = emb(mine)
    assert found.device.type == ids, found.device
    torch.testing.assert_close(found.detach().cpu(), wanted[mine.cpu()], rtol=0, atol=0)
    found.sum().backward()
    assert emb.weight.device.type == table
    assert not torch.equal(emb.full_weight().cpu(), wanted)


def test_bags_and_micro_batches():
    bag = hvd.ShardedEmbeddingBag({"user": (50, 4), "item": (30, 4)}, optimizer=hvd.sparse.Adam(lr=0.01)).to(DEVICE)
    found = bag({"user": batch(1, hvd.rank()).to(DEVICE) % 50, "item": batch(2, hvd.rank()).to(DEVICE) % 30})
    assert {key: value.device.type for key, value in found.items()} == dict.fromkeys(("user", "item"), DEVICE.type)
    (found["user"].sum() + found["item"].sum()).backward()
    emb = hvd.ShardedEmbedding(ROWS, DIM, name="micro", micro_batches=2, average=False).to(DEVICE)
    before, ids = emb.full_weight(), torch.tensor([[1, 2], [2, 3]], device=DEVICE)
    emb(ids).sum().backward()
    ones = torch.zeros(ROWS, DIM, device=DEVICE)
    ones[1], ones[2], ones[3] = 1, 2, 1
    close(emb.full_weight(), (before - 0.01 * hvd.size() * ones).cpu())


def test_what_was_saved_on_a_gpu_is_loaded_on_the_host():
    folder = hvd.broadcast_object(tempfile.mkdtemp())
    options = {"optimizer": hvd.sparse.Adam(lr=0.01), "name": "saved"}
    here = hvd.ShardedEmbedding(ROWS, DIM, **options).to(DEVICE)
    here(batch(0, hvd.rank()).to(DEVICE)).sum().backward()
    here.save(folder)
    for device in ("cpu", DEVICE):
        other = hvd.ShardedEmbedding(ROWS, DIM, seed=1, **options).to(device)
        other.load(folder)
        torch.testing.assert_close(other.full_weight().cpu(), here.full_weight().cpu(), rtol=0, atol=0)
        assert all(slot.device == other.weight.device for slot in other.slots.values())
