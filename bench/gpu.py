#!/usr/bin/env python3
"""Corro's planes for GPUs beside Gloo and NCCL of `torch.distributed`, in one run: `make bench-gpu`.

    python bench/gpu.py [--ranks 2,4,8] [--sizes 4,4k,1m,64m] [--mps off,on] [--seconds 340] [--out DIR]

All ranks share one GPU. Allreduces of float32 in place (from JAX: in a compiled program, of what it is given), and training steps of ResNet-50 and of a transformer with 102 million
parameters. A contestant is a job that stays; contestants take turns in rounds, so that all see the same machine, and a ratio
divides two times of the same round. Tables as markdown to stdout, everything to DIR/gpu.json (bench/results). NCCL is told
that each rank has a host of its own, since it refuses ranks that share a GPU otherwise: it runs over sockets.

What does not fit into `--seconds` is left out, and said. `--device cpu` tries the program itself on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROUNDS = 3
# So long a contestant may take to answer.
ANSWER = 40
# What a round of one contestant and size aims at, in microseconds.
ROUND = 60_000
# Name: the plane that is asked for.
PLANES = {"corro-ipc": "cuda-ipc", "corro-staged": "staged", "corro-nccl": "nccl"}
# The same from code that JAX has compiled.
JAX_PLANES = {"jax-ipc": "cuda-ipc", "jax-staged": "staged"}
RATIOS = [("gloo", "corro-ipc"), ("nccl", "corro-ipc"), ("gloo", "corro-staged"), ("nccl", "corro-nccl")]
RATIOS += [("jax-ipc", "corro-ipc"), ("jax-staged", "corro-staged")]
MODELS = ("resnet50", "transformer")
# Name: contestant, and whether it communicates.
WAYS = {"none": ("corro", False), "corro": ("corro", True), "ddp-gloo": ("gloo", True), "ddp-nccl": ("nccl", True)}


class Hung(Exception):
    """A contestant that did not answer, or answered with an error."""


class Contestant:
    def __init__(self, name: str, ranks: int, device: str, folder: Path, environment: dict[str, str]) -> None:
        self.name, self.ranks, self.lines = name, ranks, []
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
        self.log, path = folder / "log", str(folder / "socket")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(ranks)
        environment = {"GLOO_SOCKET_IFNAME": "lo", **environment, "CORRO_LOG_LEVEL": "warning"}
        if (plane := {**PLANES, **JAX_PLANES}.get(name)) and device != "cpu":
            environment["CORRO_GPU_PLANE"] = plane
        file = "gpu_jax_rank.py" if name in JAX_PLANES else "gpu_rank.py"
        program = ["corro", "run", "-np", str(ranks), sys.executable, str(HERE / file)]
        command = [*program, name, path, device, str(folder / "meeting")]
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.log.open("w"), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def meet(self, deadline: float) -> None:
        """Waits until all ranks are connected."""
        while len(self.lines) < self.ranks:
            ready, _, _ = select.select([self.listener], [], [], 0.2)
            if ready:
                line = self.listener.accept()[0]
                self.lines.append((line, line.makefile("r"), line.makefile("w")))
            elif self.process.poll() is not None or time.monotonic() > deadline:
                raise Hung(f"{self.name} did not start: {self.last_words()}")
        for line in self.lines:
            self.hear(line, deadline - time.monotonic())

    def hear(self, line, seconds: float) -> dict:
        ready, _, _ = select.select([line[0]], [], [], max(seconds, 0.1))
        text = line[1].readline() if ready else ""
        if not text:
            raise Hung(f"{self.name} does not answer: {self.last_words()}")
        answer = json.loads(text)
        if "error" in answer:
            raise Hung(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, **command) -> list[dict]:
        for line in self.lines:
            line[2].write(json.dumps(command) + "\n")
            line[2].flush()
        deadline = time.monotonic() + ANSWER
        return [self.hear(line, deadline - time.monotonic()) for line in self.lines]

    def last_words(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-8:])

    def end(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self.lines:
                line[2].write('{"do": "quit"}\n')
                line[2].flush()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def mps(wanted: bool, folder: Path):
    """The environment of ranks, under NVIDIA's MPS or without it."""
    if not wanted:
        yield dict(os.environ)
        return
    pipes, logs = folder / "mps", folder / "mps-log"
    pipes.mkdir(exist_ok=True)
    logs.mkdir(exist_ok=True)
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True)
    try:
        yield environment
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=environment, check=False, timeout=60)


class Run:
    """What was measured, and how much time is left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.begin = options, time.monotonic()
        self.allreduce: list[dict] = []
        self.training: list[dict] = []
        self.left_out: list[str] = []
        # How many are still to come.
        self.jobs = 0

    def left(self) -> float:
        return self.options.seconds - (time.monotonic() - self.begin)

    def share(self) -> float:
        """So long the next job may take, so that the others have as much."""
        self.jobs -= 1
        return self.left() / (self.jobs + 1)

    def skip(self, what: str) -> None:
        self.left_out.append(what)
        print(f"bench/gpu.py: left out: {what}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def job(self, names: list[str], ranks: int, folder: Path, environment: dict[str, str]):
        """Contestants that are there, by name. All start at the same time: importing torch takes seconds."""
        started = [Contestant(name, ranks, self.options.device, folder, environment) for name in names]
        deadline, there = time.monotonic() + self.options.start, {}
        try:
            for contestant in started:
                try:
                    contestant.meet(deadline)
                    there[contestant.name] = contestant
                except Hung as why:
                    self.skip(f"{ranks} ranks: {why}")
            yield there
        finally:
            for contestant in started:
                contestant.end()

    def rounds(self, there: dict[str, Contestant], size: int) -> dict[str, list[dict]]:
        """Of each contestant what each round gave: the slowest rank counts."""
        times: dict[str, int] = {}
        found: dict[str, list[dict]] = {name: [] for name in there}
        for number in range(ROUNDS + 1):
            for name in list(found):
                if name not in there:
                    continue
                try:
                    answers = there[name].ask(do="allreduce", bytes=size, times=times.get(name, 2))
                except Hung as why:
                    self.skip(f"{size} bytes: {why}")
                    there.pop(name).end()
                    continue
                alone = statistics.median(max(each) for each in zip(*(a["alone"] for a in answers), strict=True))
                if number:
                    found[name].append({"alone": alone, "row": max(a["row"] for a in answers)})
                else:
                    # The first one warms up, and says how often a round may call.
                    times[name] = int(min(max(ROUND / 2 / alone, 1), 300))
        return {name: rounds for name, rounds in found.items() if rounds}

    def measure(self, shared: bool, ranks: int, folder: Path, environment: dict[str, str]) -> None:
        on_gpu = self.options.device != "cpu"
        names = [*PLANES, *JAX_PLANES, "gloo", "nccl"] if on_gpu else ["corro-staged", "jax-staged", "gloo"]
        ends = time.monotonic() + self.share()
        with self.job(names, ranks, folder, environment) as there:
            for size in self.options.sizes:
                if time.monotonic() > ends:
                    self.skip(f"{ranks} ranks, {size} bytes and more, MPS {shared}: no time left")
                    break
                self.allreduce.append(
                    {"mps": shared, "ranks": ranks, "bytes": size, "rounds": self.rounds(there, size)}
                )

    def train(self, shared: bool, folder: Path, environment: dict[str, str]) -> None:
        gpu = self.options.device != "cpu"
        names = ["corro", "gloo", *(["nccl"] if gpu else [])]
        ends = time.monotonic() + self.share()
        with self.job(names, 2, folder, environment) as there:
            for model in MODELS if gpu else MODELS[1:]:
                found: dict[str, list[float]] = {}
                for number in range(ROUNDS + 1):
                    for way, (name, communicates) in WAYS.items():
                        if name not in there or time.monotonic() > ends:
                            continue
                        times = 6 if number else 1
                        try:
                            answers = there[name].ask(do="train", model=model, communicates=communicates, times=times)
                        except Hung as why:
                            self.skip(f"training {model}: {why}")
                            there.pop(name).end()
                            continue
                        if number:
                            found.setdefault(way, []).append(max(a["ms"] for a in answers))
                            parameters = answers[0]["parameters"]
                if found:
                    self.training.append({"mps": shared, "model": model, "parameters": parameters, "rounds": found})


def text_of(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def middle(rounds: list[dict], kind: str) -> float:
    return statistics.median(one[kind] for one in rounds)


def markdown(run: Run) -> str:
    page = []
    for kind, title in (("alone", "each call waited for"), ("row", "many calls in a row")):
        for shared, ranks in dict.fromkeys((one["mps"], one["ranks"]) for one in run.allreduce):
            cells = [one for one in run.allreduce if (one["mps"], one["ranks"]) == (shared, ranks)]
            names = list(dict.fromkeys(name for one in cells for name in one["rounds"]))
            ratios = [pair for pair in RATIOS if set(pair) <= set(names)]
            page.append(f"\n### Allreduce, {ranks} ranks, MPS {'on' if shared else 'off'}: microseconds, {title}\n")
            page.append("| bytes | " + " | ".join([*names, *(f"{a} / {b}" for a, b in ratios)]) + " |")
            page.append("| ---: " * (1 + len(names) + len(ratios)) + "|")
            for one in cells:
                rounds = one["rounds"]
                row = [f"{middle(rounds[name], kind):.0f}" if name in rounds else "-" for name in names]
                for a, b in ratios:
                    pairs = zip(rounds.get(a, []), rounds.get(b, []))
                    each = [slow[kind] / fast[kind] for slow, fast in pairs]
                    row.append(f"{statistics.median(each):.2f}" if each else "-")
                page.append(f"| {text_of(one['bytes'])} | " + " | ".join(row) + " |")
    if run.training:
        page.append("\n### Training step, 2 ranks, batch 16 each: milliseconds, and what communication adds\n")
        page.append("| model | MPS | " + " | ".join(WAYS) + " |")
        page.append("| --- | --- " + "| ---: " * len(WAYS) + "|")
    for one in run.training:
        rounds, row = one["rounds"], []
        for way in WAYS:
            if way not in rounds:
                row.append("-")
                continue
            pairs = zip(rounds[way], rounds.get("none", []))
            added = statistics.median([100 * (mine / alone - 1) for mine, alone in pairs] or [0])
            row.append(f"{statistics.median(rounds[way]):.1f}" + ("" if way == "none" else f" (+{added:.0f} %)"))
        name = f"{one['model']}, {one['parameters'] / 1e6:.0f} M parameters"
        page.append(f"| {name} | {'on' if one['mps'] else 'off'} | " + " | ".join(row) + " |")
    page += [f"\nLeft out: {what}" for what in run.left_out]
    return "\n".join(page)


def size_of(text: str) -> int:
    units = {"k": 1 << 10, "m": 1 << 20}
    return int(text[:-1]) * units[text[-1].lower()] if text[-1].lower() in units else int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default="4,4k,1m,16m,64m,256m")
    parser.add_argument("--mps", default="off,on")
    parser.add_argument("--seconds", type=float, default=340)
    parser.add_argument("--start", type=float, default=90, help="seconds a contestant may take to start")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    options.sizes = [size_of(text) for text in options.sizes.split(",")]
    run = Run(options)
    modes = [mode == "on" for mode in options.mps.split(",")] if options.device != "cpu" else [False]
    all_ranks = [int(text) for text in options.ranks.split(",")]
    trains = 2 in all_ranks and not options.no_training
    run.jobs = len(modes) * (len(all_ranks) + trains)
    for ranks in all_ranks:
        for shared in modes:
            with tempfile.TemporaryDirectory(prefix="corro-gpu-", ignore_cleanup_errors=True) as folder:
                try:
                    with mps(shared, Path(folder)) as environment:
                        if ranks == 2 and trains:
                            run.train(shared, Path(folder), environment)
                        run.measure(shared, ranks, Path(folder), environment)
                except (OSError, subprocess.SubprocessError) as why:
                    run.skip(f"{ranks} ranks, MPS {shared}: {why}")
                print(f"bench/gpu.py: {ranks} ranks, MPS {shared} done, {run.left():.0f} s left", file=sys.stderr, flush=True)
    print(markdown(run))
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"allreduce": run.allreduce, "training": run.training, "left out": run.left_out}
    (options.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if run.allreduce and any(one["rounds"] for one in run.allreduce) else 1


if __name__ == "__main__":
    sys.exit(main())
