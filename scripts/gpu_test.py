#!/usr/bin/env python3
"""Everything that needs a GPU, in one run: `make gpu`. Fails where there is none.

gpu_test.py check                       fails unless there is a GPU
gpu_test.py build [FOLDER]              programs and packages into FOLDER (target/gpu)
gpu_test.py run [FOLDER] [--only WORD] [--without WORD]
                                        runs them; needs the NVIDIA driver and a Python with torch, JAX and TensorFlow
gpu_test.py bench [FOLDER] [OPTION]...  bench/gpu.py with the package of FOLDER

The machine with the GPU need not be the one that builds: carry the repository and FOLDER there. Ranks are processes that
share the first GPU. CORRO_TEST_PYTHON names the Python (this one); CORRO_TEST_GPU_MPI the folder of an Open MPI that was built
with CUDA, by which tensors then travel too (the log says which: `goes by mpi`).
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = os.environ.get("CORRO_TEST_PYTHON", sys.executable)
CRATES = ("corro-cuda", "corro-planes")
# A program that takes longer hangs. The cases of a job have limits of their own.
LIMIT = 420
# Python's cases: name, ranks, the program, what is set for them.
JOBS = [
    ("2 ranks", 2, "run.py", {}),
    ("4 ranks", 4, "run.py", {}),
    ("2 ranks, expandable segments", 2, "run.py", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ("2 ranks, staged", 2, "run.py", {"CORRO_GPU_PLANE": "staged"}),
    ("2 ranks, NCCL", 2, "run.py", {"CORRO_GPU_PLANE": "nccl"}),
    ("2 ranks, deadlock", 2, "deadlock.py", {"CORRO_TIMEOUT": "60"}),
    ("2 ranks, deadlock, staged", 2, "deadlock.py", {"CORRO_TIMEOUT": "60", "CORRO_GPU_PLANE": "staged"}),
    ("JAX, 2 ranks", 2, "run_jax.py", {}),
    ("JAX, 4 ranks, staged", 4, "run_jax.py", {"CORRO_GPU_PLANE": "staged"}),
    ("TensorFlow, 2 ranks", 2, "run_tensorflow.py", {}),
    ("TensorFlow, 4 ranks", 4, "run_tensorflow.py", {}),
]


def why_no_gpu() -> str:
    """Empty if there is one."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver ({error})"
    count = ctypes.c_int()
    if code := cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return f"the NVIDIA driver says error {code}"
    return "" if count.value else "the NVIDIA driver shows no GPU"


def build(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packages = [word for crate in CRATES for word in ("-p", crate)]
    command = ["cargo", "test", "--locked", "--no-run", "--message-format=json", "--test", "gpu", *packages]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable"):
            crate = Path(message["manifest_path"]).parent.name
            subprocess.run(["objcopy", "--strip-debug", message["executable"], str(folder / crate)], check=True)
    subprocess.run([ROOT / "scripts/wheel"], cwd=ROOT, check=True)
    for wheel in (ROOT / "dist").glob("corro-*.whl"):
        shutil.copy(wheel, folder)
    print(f"gpu_test.py: {folder} has {', '.join(sorted(path.name for path in folder.iterdir()))}")


def environment(folder: Path) -> dict[str, str]:
    """With the package of `folder`, and the NCCL that torch brings."""
    package = folder / "package"
    if not package.exists():
        wheels = list(folder.glob("corro-*.whl"))
        if len(wheels) != 1:
            sys.exit(f"gpu_test.py: {folder} has {len(wheels)} wheels: run `scripts/gpu_test.py build` first")
        zipfile.ZipFile(wheels[0]).extractall(package)
    scripts = next(package.glob("*.data/scripts"))
    (scripts / "corro").chmod(0o755)
    found = {
        **os.environ,
        "PYTHONPATH": str(package),
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "CORRO_DYNAMIC_PROCESS_SETS": "1",
    }
    where = "import nvidia.nccl as n; print(list(n.__path__)[0])"
    nccl = subprocess.run([PYTHON, "-c", where], capture_output=True, text=True).stdout.strip()
    library = Path(nccl, "lib", "libnccl.so.2")
    if nccl and library.exists():
        found.setdefault("CORRO_NCCL_LIBRARY", str(library))
    return found


def run_one(name: str, command: list[str], env: dict[str, str]) -> bool:
    print(f"\n=== {name}: {' '.join(command)}", flush=True)
    start = time.monotonic()
    child = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True)
    try:
        code = child.wait(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        # Its ranks too.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        code = f"hung for {LIMIT} s"
    verdict = "passed" if code == 0 else f"FAILED ({code})"
    print(f"=== {name}: {verdict}, {time.monotonic() - start:.1f} s", flush=True)
    return code == 0


def run(folder: Path, only: str, without: str) -> int:
    env = environment(folder)
    tests = []
    for crate in CRATES:
        program = str(folder / crate)
        tests.append((crate, [program, "--ignored", "--nocapture", "--test-threads=1"], env))
    for name, ranks, program, more in JOBS:
        command = ["corro", "run", "-np", str(ranks), PYTHON, f"python/tests/gpu/{program}"]
        tests.append((f"Python, {name}", command, {**env, **more}))
    if mpi := os.environ.get("CORRO_TEST_GPU_MPI"):
        for ranks in (2, 4):
            options = ["--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
            command = [f"{mpi}/bin/mpiexec", *options, PYTHON, "python/tests/gpu/run.py"]
            path = f"{mpi}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"
            more = {"CORRO_GPU_PLANE": "mpi", "CORRO_LOG_LEVEL": "info", "LD_LIBRARY_PATH": path}
            tests.append((f"Python, {ranks} ranks, GPU-aware MPI", command, {**env, **more}))
    chosen = [test for test in tests if only in test[0] and not (without and without in test[0])]
    verdicts = {name: run_one(name, command, env) for name, command, env in chosen}
    print()
    for name, _, _ in tests:
        if name not in verdicts:
            print(f"not run {name}")
    for name, passed in verdicts.items():
        print(f"{'passed' if passed else 'FAILED'}  {name}")
    failed = not verdicts or not all(verdicts.values())
    print(f"make gpu: {'FAILED' if failed else 'all passed'}")
    return int(failed)


def main() -> int:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] not in ("check", "build", "run", "bench"):
        print(__doc__)
        return 2
    what = arguments.pop(0)
    folder = Path(arguments.pop(0) if arguments and not arguments[0].startswith("-") else ROOT / "target/gpu").resolve()
    if what != "build" and (why := why_no_gpu()):
        print(f"make gpu: FAILED: {why}. This needs a GPU; `make test` runs all other tests.")
        return 1
    if what == "check":
        return 0
    if what == "build":
        build(folder)
        return 0
    if what == "run":
        options = dict(zip(arguments[::2], arguments[1::2], strict=True))
        return run(folder, options.get("--only", ""), options.get("--without", ""))
    return subprocess.run([PYTHON, str(ROOT / "bench/gpu.py"), *arguments], env=environment(folder)).returncode


if __name__ == "__main__":
    sys.exit(main())
