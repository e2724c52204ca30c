"""Tables of embeddings at parameter servers, in JAX. Runs on all ranks of a job."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import corro.jax as hvd
from corro import ps

ROWS, DIM = 50, 4


def whole(emb: hvd.ShardedEmbedding) -> np.ndarray:
    return np.asarray(emb(emb.init_anchor(), jnp.arange(ROWS)))


@pytest.mark.parametrize("jit", [True, False])
def test_equal_to_one_table(jit: bool) -> None:
    """Adagrad, whose steps are not linear: gradients of one row must come together before it."""
    emb = hvd.ShardedEmbedding(ROWS, DIM, optimizer=ps.Adagrad(lr=0.1), name="table")
    table, sums = whole(emb).astype(np.float64), np.zeros((ROWS, DIM))
    optimizer = optax.sgd(0.1)
    params = {"items": emb.init_anchor()}
    state = optimizer.init(params)

    def loss(params: dict[str, jax.Array], ids: jax.Array) -> jax.Array:
        return jnp.square(emb(params["items"], ids)).sum()

    def step(params: dict[str, jax.Array], state: object, ids: jax.Array) -> tuple[dict[str, jax.Array], object]:
        gradients = jax.grad(loss)(params, ids)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state

    if jit:
        step = jax.jit(step)
    for at in range(5):
        everyones = [np.random.default_rng(10 * at + rank).integers(0, 12, (3, 4)) for rank in range(hvd.size())]
        params, state = step(params, state, jnp.asarray(everyones[hvd.rank()]))
        gradient = np.zeros((ROWS, DIM))
        for ids in everyones:
            np.add.at(gradient, ids.reshape(-1), 2 * table[ids.reshape(-1)] / hvd.size())
        sums += gradient**2
        touched = gradient.any(1)
        table[touched] -= (0.1 * gradient / (np.sqrt(sums) + 1e-10))[touched]
    jax.block_until_ready(params)
    assert float(params["items"]) == 0
    np.testing.assert_allclose(whole(emb), table, rtol=1e-5, atol=1e-5)


def test_saved_and_loaded(tmp_path: Path) -> None:
    folder = hvd.broadcast_object(str(tmp_path))
    emb = hvd.ShardedEmbedding(ROWS, DIM, name="kept")
    before = whole(emb)
    emb.save(folder)
    jax.block_until_ready(jax.grad(lambda anchor: emb(anchor, jnp.array([1, 2])).sum())(emb.init_anchor()))
    assert not np.array_equal(whole(emb), before)
    emb.load(folder)
    np.testing.assert_array_equal(whole(emb), before)


def test_wrong_ids_are_named() -> None:
    emb = hvd.ShardedEmbedding(ROWS, DIM, name="items")
    with pytest.raises(Exception, match=rf"id {ROWS} on rank {hvd.rank()} is not in table 'items'"):
        jax.block_until_ready(emb(emb.init_anchor(), jnp.array([ROWS])))
