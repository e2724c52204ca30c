#!/usr/bin/env python3
"""What it costs to watch a job, and how soon its page shows what happens.

    python bench/watching.py [cost] [launcher] [freshness] [--rounds 40]

cost: two jobs of the same training, one watched (page that a client asks as a browser does, recording, metrics) and one not,
take turns in short rounds; only one of them runs at a time. launcher: what 64 ranks cost the launcher and its agent. freshness:
how long after a rank was killed or stopped the page says so. The ranks are this same script or `train` of the launcher's tests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
STEPS = 20


def ranks_part(folder: Path, job: str) -> None:
    """A rank: takes orders (which model, how many steps) from one pipe and answers with its times through another."""
    import torch
    from torch.nn.functional import cross_entropy
    from training import models

    import corro.torch as hvd

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hvd.init()
    steps = []
    for model, x, y in models(torch).values():
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.001), model.named_parameters())

        def step(model=model, optimizer=optimizer, x=x, y=y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        steps.append(step)
    number = 0
    orders = (folder / f"{job}.{hvd.rank()}.orders").open()
    with (folder / f"{job}.{hvd.rank()}.answers").open("w") as answers:
        for order in orders:
            step = steps[int(order)]
            for _ in range(3):
                step()
            hvd.barrier()
            start, processor = time.perf_counter(), time.process_time()
            for _ in range(STEPS):
                number += 1
                hvd.log(step=number, loss=step())
            took = (time.perf_counter() - start) / STEPS * 1e3, (time.process_time() - processor) / STEPS * 1e3
            print(json.dumps(took), file=answers, flush=True)


class Job:
    """A job of ranks that wait for orders."""

    def __init__(self, folder: Path, name: str, ranks: int, flags: list[str]) -> None:
        from corro._command import program

        for rank in range(ranks):
            for kind in ("orders", "answers"):
                os.mkfifo(folder / f"{name}.{rank}.{kind}")
        command = [program(), "run", "-np", str(ranks), *flags, sys.executable, __file__, "--rank-of", name, "--folder", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.link = ""
        threading.Thread(target=self.read_errors, daemon=True).start()
        self.orders = [(folder / f"{name}.{rank}.orders").open("w") for rank in range(ranks)]
        self.answers = [(folder / f"{name}.{rank}.answers").open() for rank in range(ranks)]

    def read_errors(self) -> None:
        for line in self.process.stderr or []:
            found = re.search(r"http://\S+", line)
            if found:
                self.link = found[0]
            else:
                sys.stderr.write(line)

    def round(self, model: int) -> tuple[float, float]:
        for pipe in self.orders:
            print(model, file=pipe, flush=True)
        answers = [json.loads(pipe.readline()) for pipe in self.answers]
        return max(wall for wall, _ in answers), statistics.mean(processor for _, processor in answers)

    def end(self) -> None:
        for pipe in self.orders:
            pipe.close()
        self.process.wait(60)


def address(link: str, path: str, more: str = "") -> str:
    base, token = link.split("/?token=")
    return f"{base}/{path}?token={token}{more}"


def ask(link: str, path: str, more: str = "") -> bytes:
    with urllib.request.urlopen(address(link, path, more), timeout=5) as answer:
        return answer.read()


@contextlib.contextmanager
def browser(job_link) -> Iterator[None]:
    """Asks for the page's numbers as the page in a browser does, and for the metrics as Prometheus does."""
    over = threading.Event()

    def look() -> None:
        row, beats = "", 0
        while not over.wait(0.25):
            link = job_link()
            if not link:
                continue
            with contextlib.suppress(OSError):
                ask(link, "pulse")
                beats += 1
                if beats % 4 == 0:
                    view = json.loads(ask(link, "view", f"{row}&lines={10**9}"))
                    row = f"&row={view['recent'][-1]['at']}" if view["recent"] else row
                if beats % 40 == 0:
                    ask(link, "metrics")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:+6.2f} %  (quartiles {low:+.2f} to {high:+.2f})"


def cost(rounds: int) -> None:
    import torch
    from training import models

    names = list(models(torch))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        record = ["--page", "--record", str(folder / "run.corro"), "--logdir", str(folder / "logs")]
        jobs = {"plain": Job(folder, "plain", 2, []), "watched": Job(folder, "watched", 2, record)}
        with browser(lambda: jobs["watched"].link):
            for model, name in enumerate(names):
                times: dict[str, list[tuple[float, float]]] = {"plain": [], "watched": []}
                for number in range(rounds + 2):
                    order = ["plain", "watched"] if number % 2 else ["watched", "plain"]
                    for which in order:
                        took = jobs[which].round(model)
                        if number >= 2:  # the first rounds warm up
                            times[which].append(took)
                pairs = list(zip(times["plain"], times["watched"], strict=True))
                wall = [100 * (watched[0] / plain[0] - 1) for plain, watched in pairs]
                processor = [100 * (watched[1] / plain[1] - 1) for plain, watched in pairs]
                step = statistics.median(plain[0] for plain, _ in pairs)
                print(f"{name:42s} {step:7.2f} ms a step   watched: time {quartiles(wall)}", flush=True)
                print(f"{'':42s} {'':7s}                       processor {quartiles(processor)}", flush=True)
        for job in jobs.values():
            job.end()


def processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def start_train(train: str, ranks: int, *words: str) -> tuple[subprocess.Popen[str], str]:
    from corro._command import program

    command = [program(), "run", "-np", str(ranks), "--page", train, *words]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in job.stderr or []:
        found = re.search(r"http://\S+", line)
        if found:
            threading.Thread(target=lambda: [None for _ in job.stderr or []], daemon=True).start()
            return job, found[0]
    raise SystemExit("the job has not started")


def launcher(train: str) -> None:
    job, link = start_train(train, 64, "1000000", "200", "1")
    with browser(lambda: link):
        while not all(rank.get("step", 0) > 2 for rank in json.loads(ask(link, "view"))["ranks"] or [{}]):
            time.sleep(1)
        pids = {"launcher": job.pid, "agent": children(job.pid)[0]}
        before, began = {name: processor_seconds(pid) for name, pid in pids.items()}, time.monotonic()
        time.sleep(30)
        took = time.monotonic() - began
        for name, pid in pids.items():
            share = 100 * (processor_seconds(pid) - before[name]) / took
            print(f"64 ranks: {name:8s} {share:5.2f} % of one core, {memory(pid):.1f} MiB", flush=True)
    job.send_signal(signal.SIGINT)
    job.wait(60)


def seconds_until(link: str, happened) -> float:
    began = time.monotonic()
    pulse = ask(link, "pulse")
    while time.monotonic() - began < 30:
        # As the page does it: a short question four times a second, and the whole when the answer is another.
        if ask(link, "pulse") != pulse and happened(json.loads(ask(link, "view", f"&lines={10**9}"))):
            return time.monotonic() - began
        time.sleep(0.25)
    raise SystemExit("the page does not say it")


def freshness(train: str) -> None:
    for what, sign in (("stopped", signal.SIGSTOP), ("killed", signal.SIGKILL)):
        times = []
        for _ in range(10):
            job, link = start_train(train, 4, "1000000", "20", "10")
            while not all(rank.get("step", 0) > 20 for rank in json.loads(ask(link, "view"))["ranks"] or [{}]):
                time.sleep(0.2)
            victim = json.loads(ask(link, "view"))["ranks"][2]["pid"]
            os.kill(victim, sign)
            if sign == signal.SIGSTOP:
                times.append(seconds_until(link, lambda view: view["stall"] and view["stall"]["awaited"] == [2]))
                os.kill(victim, signal.SIGCONT)
            else:
                try:
                    times.append(seconds_until(link, lambda view: view["ranks"][2]["state"] == "failed"))
                except OSError:
                    # The launcher has ended the job and itself: what the page shows last.
                    pass
            job.send_signal(signal.SIGINT)
            job.wait(60)
        print(f"a rank is {what}: on the page after {statistics.median(times):.2f} s, at most {max(times):.2f} s ({len(times)} times)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["cost", "launcher", "freshness"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--train", default=str(HERE.parent / "target" / "debug" / "examples" / "train"))
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        ranks_part(options.folder, options.rank_of)
        return
    for part in options.parts:
        {"cost": lambda: cost(options.rounds), "launcher": lambda: launcher(options.train), "freshness": lambda: freshness(options.train)}[part]()


if __name__ == "__main__":
    main()
