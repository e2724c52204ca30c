"""One rank of a contestant of `gpu.py` that reduces in programs which JAX has compiled. See `gpu_rank.py`."""

from __future__ import annotations

import os
import sys
import time

CONTESTANT, SOCKET, DEVICE, _MEETING = sys.argv[1:5]
os.environ["JAX_PLATFORMS"] = "cpu" if DEVICE == "cpu" else "cuda"
# Ranks and contestants share a GPU; JAX would take three quarters of its memory for each.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from gpu_line import serve  # noqa: E402

import corro.jax as hvd  # noqa: E402

allreduce = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum), donate_argnums=0)
BUFFERS: dict[int, jax.Array] = {}


def buffer(size: int) -> jax.Array:
    """Of so many bytes; the first allreduce of it is checked."""
    if size not in BUFFERS:
        BUFFERS.clear()
        x = allreduce(jnp.full(size // 4, hvd.rank() + 1.0))
        wanted = hvd.size() * (hvd.size() + 1) / 2
        if float(x.min()) != wanted or float(x.max()) != wanted:
            raise RuntimeError(f"the sum of {size} bytes is wrong: {float(x.min())} to {float(x.max())}, not {wanted}")
        BUFFERS[size] = jnp.zeros_like(x)
    return BUFFERS[size]


def measure(size: int, times: int) -> dict:
    """Microseconds: of each call whose result was waited for, and of a call among many in a row."""
    x = allreduce(buffer(size)).block_until_ready()
    alone = []
    for _ in range(times):
        begin = time.perf_counter()
        x = allreduce(x).block_until_ready()
        alone.append((time.perf_counter() - begin) * 1e6)
    begin = time.perf_counter()
    for _ in range(times):
        x = allreduce(x)
    x.block_until_ready()
    took = (time.perf_counter() - begin) * 1e6 / times
    BUFFERS[size] = x
    return {"alone": alone, "row": took}


if __name__ == "__main__":
    hvd.init()
    serve(SOCKET, allreduce=lambda asked: measure(asked["bytes"], asked["times"]))
    hvd.shutdown()
