"""What the number of threads does to a step: the launcher's own choice beside every other, 2 ranks.

    .venv-test/bin/python bench/threads.py

Runs a small convolutional network under each setting in turn, again and again, and compares medians of the rounds.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

STEP = """
import statistics, time, torch, corro.torch as hvd
from torch import nn
hvd.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
                      nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
x, y = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
times = []
for step in range(60):
    begin = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    times.append(time.perf_counter() - begin)
if hvd.rank() == 0:
    print("took", statistics.median(times[20:]), torch.get_num_threads())
"""


def run(threads: str | None, ranks: int = 2) -> tuple[float, str]:
    env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if threads is not None:
        env["OMP_NUM_THREADS"] = threads
    corro = Path(sys.executable).with_name("corro")
    job = [str(corro), "run", "-np", str(ranks), "--no-prefix", "--ranks", "0", sys.executable, "-c", STEP]
    out = subprocess.run(job, env=env, capture_output=True, text=True, timeout=300, check=True).stdout
    _, seconds, used = out.split()
    return float(seconds), used


def main() -> None:
    settings = {"the launcher's": None, "1": "1", "2": "2", "all cores": str(len(os.sched_getaffinity(0)))}
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    times: dict[str, list[float]] = {name: [] for name in settings}
    used = {}
    for _ in range(rounds):
        for name, threads in settings.items():
            seconds, used[name] = run(threads)
            times[name].append(seconds)
    best = min(statistics.median(all_) for all_ in times.values())
    print(f"{'threads':>15} {'used':>5} {'ms a step':>10} {'of the best':>12}")
    for name, all_ in times.items():
        median = statistics.median(all_)
        print(f"{name:>15} {used[name]:>5} {median * 1e3:>10.2f} {median / best:>12.2f}")


if __name__ == "__main__":
    main()
