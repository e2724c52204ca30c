"""A small transformer, written in plain JAX, that learns to write like the sonnets, letter by letter.

corro run -np 2 python examples/jax/transformer.py
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import corro.jax as hvd

TEXT = Path(__file__).parent.parent / "torch" / "sonnets.txt"
HEADS = 4


def dense(key: jax.Array, inputs: int, outputs: int) -> Any:
    return {"w": jax.random.normal(key, (inputs, outputs)) / math.sqrt(inputs), "b": jnp.zeros(outputs)}


def writer(key: jax.Array, letters: int, context: int, width: int = 96, layers: int = 2) -> Any:
    keys = iter(jax.random.split(key, 4 * layers + 3))
    return {
        "letter": jax.random.normal(next(keys), (letters, width)) * 0.1,
        "place": jax.random.normal(next(keys), (context, width)) * 0.1,
        "layers": [
            {
                "attend": dense(next(keys), width, 3 * width),
                "gather": dense(next(keys), width, width),
                "widen": dense(next(keys), width, 4 * width),
                "narrow": dense(next(keys), 4 * width, width),
            }
            for _ in range(layers)
        ],
        "output": dense(next(keys), width, letters),
    }


def linear(layer: Any, x: jax.Array) -> jax.Array:
    y: jax.Array = x @ layer["w"] + layer["b"]
    return y


def normal(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(layer: Any, x: jax.Array) -> jax.Array:
    batch, length, width = x.shape
    heads = linear(layer["attend"], x).reshape(batch, length, 3, HEADS, width // HEADS)
    query, key, value = jnp.moveaxis(heads, 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(width // HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return linear(layer["gather"], mixed.reshape(batch, length, width))


def logits_of(params: Any, passages: jax.Array) -> jax.Array:
    x = params["letter"][passages] + params["place"][: passages.shape[1]]
    for layer in params["layers"]:
        x = x + attention(layer, normal(x))
        x = x + linear(layer["narrow"], jax.nn.gelu(linear(layer["widen"], normal(x))))
    return linear(params["output"], normal(x))


def loss_of(params: Any, passages: jax.Array) -> jax.Array:
    logits = logits_of(params, passages[:, :-1])
    loss: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, passages[:, 1:]).mean()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--context", type=int, default=64)
    options = parser.parse_args()

    hvd.init()
    text = TEXT.read_text(encoding="utf-8")
    letters = sorted(set(text))
    data = np.array([letters.index(letter) for letter in text])

    params = writer(jax.random.key(hvd.rank()), len(letters), options.context)
    params = hvd.broadcast_parameters(params, root_rank=0)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))
    state = optimizer.init(params)
    gradients_of = hvd.value_and_grad(loss_of, average_value=True)

    @jax.jit
    def step(params: Any, state: Any, passages: jax.Array) -> Any:
        loss, gradients = gradients_of(params, passages)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    # Every rank draws its own passages.
    draw = np.random.default_rng(hvd.rank())
    start = time.perf_counter()
    loss = jnp.zeros(())
    for number in range(options.steps):
        places = draw.integers(len(data) - options.context - 1, size=options.batch_size)
        passages = np.stack([data[place : place + options.context + 1] for place in places])
        params, state, loss = step(params, state, passages)
        if hvd.rank() == 0 and number % 50 == 49:
            print(f"step {number + 1}   loss {float(loss):.2f}", flush=True)
    seconds = time.perf_counter() - start
    if hvd.rank() == 0:
        rate = options.steps * options.batch_size * options.context * hvd.size() / seconds
        chance = math.log(len(letters))
        print(f"ranks {hvd.size()}   loss {float(loss):.2f} (chance: {chance:.2f})   {rate:,.0f} letters/s", flush=True)


if __name__ == "__main__":
    main()
