#!/usr/bin/env python3
"""How long a training stands still when a rank is killed: Corro beside torchrun, in one run.

    python bench/elastic.py [--kills 20] [--ranks 4] [--only corro,spare,torchrun,jax,gpu] [--out bench/results]

The same small CNN on the same data, one thread a rank, on this host; each step waits 20 ms, as for data, so that more ranks than cores
do not starve what is started anew. After some steps one rank is killed by SIGKILL, in turn
each of them; what counts is the time from the kill to the end of the next step, by the clock of the machine.

| way | what happens |
| --- | --- |
| corro | `corro run --min-np`: the others go on without it; a new process takes its place later |
| spare | the same with `--spares 1`: a process that is started and imported already takes its place. Each kill waits until the launcher has said that a spare is ready, as it is when ranks die minutes apart |
| jax | as corro, with `corro.jax`: those who are left keep the step that they have compiled; not in the run unless `--only` names it |
| gpu | as corro, with tensors on the first GPU, which the ranks share, and steps that wait for nothing; always the last rank is killed, and memory of the GPU is told: that of the one who stays, and of all |
| torchrun | `torchrun --max-restarts`: all processes are ended and started again, and load the last checkpoint |

The ranks are this same script.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 120.0
# What a step waits, as for data.
PAUSE = 0.02
# Steps of all ranks between two kills: enough that the last trouble is over.
STEPS = 15


# ---- the ranks ----


def tell(log: Path, **facts) -> None:
    with (log / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), "time": time.monotonic(), **facts}) + "\n")


def model_of(torch):
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    return net, torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))


def corro_rank(log: Path) -> None:
    import torch
    from torch.nn.functional import cross_entropy

    import corro.torch as hvd

    hvd.init()
    net, x, y = model_of(torch)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters()), net.named_parameters())
    state = hvd.elastic.TorchState(net, optimizer, step=0)

    @hvd.elastic.run
    def train(state) -> None:
        while True:
            time.sleep(PAUSE)
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
            state.step += 1
            tell(log, rank=hvd.rank(), size=hvd.size(), step=state.step)
            state.commit()

    train(state)


def gpu_rank(log: Path) -> None:
    import torch
    from torch import nn

    import corro.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.ReLU()))).cuda()
    x = torch.randn(64, 2048, device="cuda")
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters(), 1e-5), net.named_parameters())
    state = hvd.elastic.TorchState(net, optimizer, step=0)

    @hvd.elastic.run
    def train(state) -> None:
        while True:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            torch.cuda.synchronize()
            state.step += 1
            free, total = torch.cuda.mem_get_info()
            memory = {"own": torch.cuda.memory_allocated() >> 20, "all": (total - free) >> 20}
            tell(log, rank=hvd.rank(), size=hvd.size(), step=state.step, **memory)
            state.commit()

    train(state)


def jax_rank(log: Path) -> None:
    import jax
    import jax.numpy as jnp
    import optax

    import corro.jax as hvd

    hvd.init()
    x, y = jax.random.normal(jax.random.key(0), (16, 64)), jnp.ones((16, 10))
    params = {"in": jnp.full((64, 256), 0.01, "float32"), "out": jnp.full((256, 10), 0.01, "float32")}
    optimizer = hvd.DistributedOptimizer(optax.adam(0.01))
    traced = []

    def loss_of(params):
        return ((jnp.tanh(x @ params["in"]) @ params["out"] - y) ** 2).mean()

    @jax.jit
    def step(params, opt_state):
        traced.append(1)
        value, gradients = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    state = hvd.elastic.JaxState(params=params, opt_state=optimizer.init(params), step=0)

    @hvd.elastic.run
    def train(state) -> None:
        while True:
            time.sleep(PAUSE)
            state.params, state.opt_state, value = step(state.params, state.opt_state)
            value.block_until_ready()
            state.step += 1
            tell(log, rank=hvd.rank(), size=hvd.size(), step=state.step, traced=len(traced))
            state.commit()

    train(state)


def torch_rank(log: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    net, x, y = model_of(torch)
    optimizer = torch.optim.Adam(net.parameters())
    kept, step = log / "checkpoint.pt", 0
    if kept.exists():
        saved = torch.load(kept)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    distributed = torch.nn.parallel.DistributedDataParallel(net)
    while True:
        time.sleep(PAUSE)
        optimizer.zero_grad()
        cross_entropy(distributed(x), y).backward()
        optimizer.step()
        step += 1
        tell(log, rank=rank, size=size, step=step)
        if rank == 0 and step % 5 == 0:
            new = kept.with_suffix(".new")
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
            new.rename(kept)


# ---- who kills them ----


class Stuck(Exception):
    """A job did not do in time what it was to do."""


class Watched:
    """A job, and what its ranks have written down."""

    def __init__(self, way: str, ranks: int, directory: Path) -> None:
        self.way = way
        self.log = directory
        me = [str(Path(__file__).resolve())]
        if way == "torchrun":
            run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            command = [*run, "--max-restarts=1000", "--monitor-interval=0.1", *me, "--as", "torch"]
        else:
            beside = str(Path(sys.executable).parent)
            program = shutil.which("corro", path=f"{beside}{os.pathsep}{os.environ['PATH']}") or "corro"
            run = [program, "run", "-np", str(ranks), "--min-np", "1"]
            spare = ["--spares", "1"] if way == "spare" else []
            command = [*run, *spare, sys.executable, *me, "--as", way if way in ("jax", "gpu") else "corro"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "BENCH_LOG": str(directory)}
        # Else torch 2.15 keeps one store for all restarts, in which Gloo finds the addresses of those who are dead.
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self.output = (directory / "output").open("wb")
        self.job = subprocess.Popen(
            command, env=env, stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._offsets: dict[Path, int] = {}
        self.steps: list[dict] = []
        self.killed = 0

    def look(self) -> list[dict]:
        """The steps that were made since the last look."""
        new = []
        for file in self.log.glob("*.jsonl"):
            with file.open("rb") as opened:
                opened.seek(self._offsets.get(file, 0))
                data = opened.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[file] = self._offsets.get(file, 0) + whole
            new += [json.loads(line) for line in data[:whole].splitlines()]
        self.steps += new
        return new

    def wait(self, what: str, found):
        """The first step for which `found` holds, of those since the last kill began."""
        until = time.monotonic() + LIMIT
        steps = self.steps
        while True:
            hits = [s for s in steps if found(s)]
            if hits:
                return min(hits, key=lambda s: s["time"])
            if self.job.poll() is not None or time.monotonic() > until:
                raise Stuck(f"{self.way}: no {what} (status {self.job.poll()}):\n{self.text()[-3000:]}")
            time.sleep(0.02)
            steps = self.look()

    def text(self) -> str:
        return (self.log / "output").read_text(errors="replace")

    def wait_for_a_spare(self) -> None:
        """As many have become ready as ranks were lost, and one more."""
        until = time.monotonic() + LIMIT
        while self.text().count("is ready to take a lost one's place") <= self.killed:
            if self.job.poll() is not None or time.monotonic() > until:
                raise Stuck(f"spare: none came:\n{self.text()[-3000:]}")
            time.sleep(0.1)

    def kill(self, rank: int, ranks: int) -> tuple[float, float]:
        """Seconds from the kill of a rank to the next step, and to the next step of all."""
        if self.way == "spare":
            self.wait_for_a_spare()
        self.look()
        self.steps = []
        first = self.wait("step of all", lambda s: s["size"] == ranks)
        last = self.wait("steps", lambda s: s["step"] >= first["step"] + STEPS and s["size"] == ranks and s["rank"] == rank)
        killed = time.monotonic()
        os.kill(last["pid"], signal.SIGKILL)
        self.killed += 1
        # What others finish without knowing of it does not count: the step of a new epoch is one of other members.
        pids = {s["pid"] for s in self.steps if s["size"] == ranks}

        def new(s: dict) -> bool:
            return s["time"] > killed and (s["size"] < ranks or s["pid"] not in pids)

        next_step = self.wait("step after the kill", new)
        full = self.wait("step of all after the kill", lambda s: new(s) and s["size"] == ranks)
        if any(s.get("traced", 1) > 1 for s in self.steps):
            raise Stuck("jax: a step was compiled anew")
        times = next_step["time"] - killed, full["time"] - killed
        if self.way == "gpu":
            # Some steps later, when caches of memory are filled again.
            later = self.wait("steps", lambda s: s["pid"] in pids and s["step"] >= full["step"] + STEPS and s["size"] == ranks)
            print(f"    GPU memory: {later['own']} MiB in tensors of rank {later['rank']}, {later['all']} MiB in all", file=sys.stderr)
        print(f"    rank {rank}: next step {times[0]:.2f} s, at full size {times[1]:.2f} s", file=sys.stderr, flush=True)
        return times

    def end(self) -> None:
        self.job.send_signal(signal.SIGTERM)
        try:
            self.job.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.job.pid, signal.SIGKILL)
            self.job.wait()
        self.output.close()
        mark = f"BENCH_LOG={self.log}".encode()
        for file in self.log.glob("*.jsonl"):
            try:
                # Numbers are used again: only what is of this job is ended.
                if mark in Path(f"/proc/{file.stem}/environ").read_bytes():
                    os.kill(int(file.stem), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", default="corro,spare,torchrun")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--as", dest="rank_of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        log = Path(os.environ["BENCH_LOG"])
        return {"corro": corro_rank, "jax": jax_rank, "gpu": gpu_rank, "torch": torch_rank}[options.rank_of](log)

    # Whoever ends this ends the jobs with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"kill -9 of one of {options.ranks} ranks, {options.kills} times; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'way':10} {'next step':>10} {'worst':>8}   {'at full size':>12} {'worst':>8}   (seconds, median)")
    results = {}
    for way in options.only.split(","):
        # torchrun's restarts are slow; a few tell as much.
        kills = options.kills if way != "torchrun" else max(options.kills // 4, 1)
        times = []
        with tempfile.TemporaryDirectory() as directory:
            watched = Watched(way, options.ranks, Path(directory))
            try:
                for i in range(kills):
                    times.append(watched.kill(options.ranks - 1 if way == "gpu" else i % options.ranks, options.ranks))
            except Stuck as stuck:
                # That is a result as well, and no reason to lose those of the others.
                print(f"{stuck}\n{way:10} did not go on after kill {len(times) + 1} of {kills}", flush=True)
            finally:
                watched.end()
        results[way] = {"kills": kills, "next_step": [t[0] for t in times], "full_size": [t[1] for t in times]}
        if times:
            steps, full = zip(*times)
            print(
                f"{way:10} {statistics.median(steps):10.2f} {max(steps):8.2f}   {statistics.median(full):12.2f} {max(full):8.2f}",
                flush=True,
            )
    bars = []
    for way in ("corro", "jax"):
        if results.get(way, {}).get("next_step"):
            bars.append((f"{way}: next step after a kill, without spares", statistics.median(results[way]["next_step"]), 1.5))
    if results.get("spare", {}).get("full_size"):
        bars.append(("at full size, with a spare", statistics.median(results["spare"]["full_size"]), 2.0))
    for what, got, need in bars:
        print(f"{'met' if got < need else 'MISSED'}: {what}: {got:.2f} s (bar: {need} s)")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "elastic.json").write_text(json.dumps({"ranks": options.ranks, "seconds": results}, indent=1))


if __name__ == "__main__":
    main()
