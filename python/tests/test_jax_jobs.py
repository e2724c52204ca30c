"""Runs the tests of `parallel/` for JAX on all ranks of jobs of 1, 2 and 4 processes, and whole programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from test_jobs import run_job

HERE = Path(__file__).parent
FILES = [*sorted((HERE / "parallel").glob("test_jax*.py")), HERE / "parallel" / "test_cases.py"]
JAX = {"CORRO_TEST_FRAMEWORK": "jax", "JAX_PLATFORMS": "cpu"}
# So that a program can be compiled for several devices; all others are compiled for the first of them.
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
THOROUGH = bool(os.environ.get("CORRO_TEST_THOROUGH"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_on_all_ranks(size: int) -> None:
    # Compiling takes most of the time. Everything runs on two ranks; on others, what depends on how many they are, and in
    # `make deep` all of it.
    files = FILES if size == 2 else [HERE / "parallel" / "test_jax_ops.py"]
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=120"]
    if size != 2 and not THOROUGH:
        options += ["-k", "(jit and not dtype and not vmap) or gradients or devices or different or sets"]
    variables = {**JAX, **(TWO_DEVICES if size == 2 else {})}
    job = run_job(size, sys.executable, "-m", "pytest", *options, *map(str, files), timeout=880, **variables)
    if job.returncode:
        pytest.fail(f"on {size} ranks:\n{job.stdout[-6000:]}\n{job.stderr[-6000:]}", pytrace=False)


def run_script(size: int, text: str, tmp_path: Path, *options: str, **variables: str) -> str:
    script = tmp_path / "job.py"
    script.write_text(text)
    job = run_job(size, *options, sys.executable, str(script), **{**JAX, **variables})
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
    return job.stdout


# A rank is killed in the middle of each of the trainings; those that are left go on, and compile nothing anew unless their
# program has the number of ranks in it.
ELASTIC = """
import os, signal, jax, jax.numpy as jnp, optax, corro.jax as hvd
hvd.init()
traces = []

def train(name, step, retraced):
    params = {"w": jnp.zeros(2)}
    state = hvd.elastic.JaxState(params=params, opt_state=optimizer.init(params), batch=0)

    @hvd.elastic.run
    def run(state):
        while state.batch < 20:
            if state.batch == 7 and hvd.rank() == hvd.size() - 1 and hvd.size() == sizes[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            state.params, state.opt_state = step(state.params, state.opt_state)
            state.batch += 1
            state.commit()

    run(state)
    assert state.params["w"].tolist() == [-20.0, -20.0], state.params
    assert hvd.size() == sizes.pop(0) - 1
    assert traces.count(name) == retraced, traces
    print(name, "survived", flush=True)

sizes = [4, 3]
optimizer = hvd.DistributedOptimizer(optax.sgd(1.0))

def whole(params, opt_state):
    traces.append("average")
    updates, opt_state = optimizer.update({"w": jnp.ones(2)}, opt_state, params)
    return optax.apply_updates(params, updates), opt_state

def by_size(params, opt_state):
    traces.append("gather")
    rows = hvd.allgather(jnp.ones((1, 2)))
    assert rows.shape == (hvd.size(), 2)
    return {"w": params["w"] - rows.sum(0) / hvd.size()}, opt_state

train("average", jax.jit(whole, donate_argnums=(0, 1)), 1)
train("gather", jax.jit(by_size, donate_argnums=0), 2)
"""


def test_training_survives_lost_ranks(tmp_path: Path) -> None:
    printed = run_script(4, ELASTIC, tmp_path, "--min-np", "1", "--max-np", "4")
    # Each line is written by all who are left: 3 and 2 of them.
    assert [printed.count(f"{name} survived") for name in ("average", "gather")] == [3, 2], printed


# Nobody looks at the last results: the program is over before JAX is.
IN_FLIGHT = """
import jax, jax.numpy as jnp, corro.jax as hvd
hvd.init()
slow = jax.jit(lambda x: hvd.allreduce(jax.lax.fori_loop(0, 30, lambda i, x: jnp.sin(x), x)))
x = jnp.ones(100_000) * (1 + hvd.rank())
for _ in range(5):
    x = slow(x)
if hvd.rank() == 0:
    print("sum", float(x.sum()), flush=True)
"""


def test_a_rank_ends_what_it_has_begun(tmp_path: Path) -> None:
    assert "sum" in run_script(2, IN_FLIGHT, tmp_path)


# At first nothing is wrong: ranks only come at different times, while one computes, sleeps, or waits for something else.
# Then each waits in a compiled program for what the other does not run.
WRONG = """
import threading, time, jax, jax.numpy as jnp, corro.jax as hvd
try:
    hvd.allreduce(jnp.ones(1))
except ValueError as error:
    assert "use hvd.init()" in str(error), error
hvd.init()
first = hvd.rank() == 0
slow = jax.jit(lambda x, n: hvd.allreduce(jax.lax.fori_loop(0, n, lambda i, y: jnp.cos(y), x).sum(), op=hvd.Max))
slow(jnp.ones(30_000), 1).block_until_ready()

# One computes in XLA, and waits for the barrier meanwhile; the other comes to that when the computation is done.
began = time.monotonic()
result = slow(jnp.ones(30_000), 3000 if first else 1)
if first:
    hvd.barrier()
assert result > 0
if not first:
    hvd.barrier()
print("computed for", time.monotonic() - began, flush=True)

# One has begun, and sleeps; what the other waits for comes afterwards. (JAX waits for small programs itself, but not for
# those with a loop.)
mine = slow(jnp.ones(30_000), 1) if first else None
if first:
    time.sleep(1.5)
assert hvd.broadcast_object(7, name="late") == 7
mine = slow(jnp.ones(30_000), 1) if mine is None else mine
assert mine > 0

# The same, with one that comes from another thread.
named = [jax.jit(lambda x, name=name: hvd.allreduce(x, op=hvd.Sum, name=name)) for name in ("one", "two")]
late = []
other = threading.Thread(target=lambda: (time.sleep(1.5), late.append(named[first](jnp.ones(2)).tolist())))
if first:
    other.start()
both = [f(jnp.ones(2)).tolist() for f in ([named[not first]] if first else named)]
if first:
    other.join()
assert both + late == [[2.0] * 2] * 2, (both, late)

mine = "ab"[hvd.rank()]
began = time.monotonic()
try:
    jax.jit(lambda x: hvd.allreduce(x, name=mine))(jnp.ones(3)).block_until_ready()
except Exception as error:
    text = str(error)
    assert "deadlock" in text, text
    assert "rank 0 on" in text and "waits for 'allreduce.a', which rank 1 has not submitted" in text, text
    assert "waits for 'allreduce.b', which rank 0 has not submitted" in text, text
else:
    raise AssertionError("it never ends")
print("told after", time.monotonic() - began, flush=True)
hvd.shutdown()
"""


def test_ranks_that_run_different_programs_are_told_which(tmp_path: Path) -> None:
    # Long before CORRO_TIMEOUT.
    assert run_script(2, WRONG, tmp_path).count("told after") == 2


DIFFERENT = """
import jax, jax.numpy as jnp, optax, corro.jax as hvd
hvd.init()
optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
params = {"w": jnp.full(3, 1.0 + hvd.rank())}
state = optimizer.init(params)
step = jax.jit(lambda params: optimizer.update({"w": jnp.ones(3)}, state, params)[0])
while True:
    jax.block_until_ready(step(params))
    jax.effects_barrier()
"""


def test_all_checks_look_at_compiled_steps_as_well(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(DIFFERENT)
    job = run_job(2, sys.executable, str(script), **{**JAX, "CORRO_CHECKS": "2"})
    assert job.returncode != 0
    assert "TrainingMistake" in job.stderr, job.stderr[-6000:]
    assert "parameter ['w'] is [1.0, 1.0, 1.0] on rank 0 but [2.0, 2.0, 2.0] on rank 1" in job.stderr, job.stderr


# Ranks that know each other by JAX's own means as well; devices of others are not this process's.
BESIDE = """
import os, sys, jax
import corro.jax as hvd
hvd.init()
jax.distributed.initialize(f"localhost:{sys.argv[1]}",
                           num_processes=hvd.size(), process_id=hvd.rank())
import jax.numpy as jnp
assert jax.process_count() == hvd.size() and jax.device_count() == hvd.size()
x = jax.device_put(jnp.ones(3), jax.local_devices()[0])
assert jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(x).tolist() == [2.0] * 3
assert hvd.allgather(x).shape == (6,)
hvd.barrier()
jax.distributed.shutdown()
"""


def test_beside_jax_distributed(tmp_path: Path) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    script = tmp_path / "job.py"
    script.write_text(BESIDE)
    job = run_job(2, sys.executable, str(script), str(port), **JAX)
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"


EXAMPLES = """
import runpy, sys
folder, *examples = sys.argv[1:]
sys.path.insert(0, folder)
for example in examples:
    sys.argv = example.split()
    runpy.run_path(f"{folder}/{sys.argv[0]}", run_name="__main__")
"""


@pytest.mark.timeout(600)
def test_examples(tmp_path: Path) -> None:
    script = tmp_path / "examples.py"
    script.write_text(EXAMPLES)
    folder = HERE.parent.parent / "examples" / "jax"
    examples = ["digits.py --epochs 3", "elastic_digits.py --epochs 1"]
    if THOROUGH:
        examples += [
            "transformer.py --steps 5 --batch-size 2",
            "synthetic_benchmark.py --batch-size 2 --warmup 1 --iterations 2",
        ]
    job = run_job(2, sys.executable, str(script), str(folder), *examples, timeout=580, **JAX)
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
    assert "CORRO_CHECKS" not in job.stdout + job.stderr, job.stderr[-6000:]
    if THOROUGH:
        assert "images/s in all" in job.stdout
        assert "letters/s" in job.stdout
    accuracy = float(job.stdout.split("test accuracy ")[1].split("%")[0])
    assert accuracy > 85, job.stdout
