"""Runs the tests of `parallel/` on all ranks of jobs of 2 and 4 processes, started by the `corro` program."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from corro._command import program

HERE = Path(__file__).parent
# TensorFlow, Keras, JAX and MXNet have environments, and runners, of their own.
FILES = [
    file
    for file in sorted((HERE / "parallel").glob("test_*.py"))
    if not {"tensorflow", "keras", "jax", "mxnet"} & {*file.stem.split("_")}
]
# Ranks of a test that goes wrong wait for each other; this must end it long before the limit for the job. On a busy machine
# one that compiles a model may be half a minute behind.
QUIET_SECONDS = "60"


def run_job(size: int, *command: str, timeout: float = 280, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CORRO_TIMEOUT": QUIET_SECONDS, "OMP_NUM_THREADS": "1", **variables}
    job = [program(), "run", "-np", str(size), *command]
    return subprocess.run(job, env=env, capture_output=True, text=True, timeout=timeout, check=False)


# What two ranks show as well as four; `make deep` runs it on four too. (Four that compile at once take too long.)
THOROUGH = bool(os.environ.get("CORRO_TEST_THOROUGH"))
ON_TWO_RANKS = {"test_torch_compiled"}
if not THOROUGH:
    ON_TWO_RANKS |= {"test_torch_checks", "test_torch_final", "test_torch_lightning", "test_torch_state"}


# All files in one job: most of what a job takes is the import of torch.
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("size", [2, 4])
def test_on_all_ranks(size: int) -> None:
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=120"]
    files = [str(file) for file in FILES if size == 2 or file.stem not in ON_TWO_RANKS]
    job = run_job(size, sys.executable, "-m", "pytest", *options, *files, timeout=900)
    if job.returncode:
        pytest.fail(f"on {size} ranks:\n{job.stdout[-6000:]}\n{job.stderr[-6000:]}", pytrace=False)


JOBS = {
    # name: (ranks, what every rank runs)
    "memory that a program takes away from torch in flight": (
        2,
        """
import torch, corro.torch as hvd
hvd.init()
MiB = 1 << 20

def in_flight(name, take_away, shape=(8 * MiB // 4,), submit=hvd.allreduce_async_, dtype=torch.float32):
    x = torch.ones(shape, dtype=dtype)
    if hvd.rank() == 0:
        handle = submit(x, name=name)
        take_away(x)
        # Whoever got the memory, had it been given back, would write into it now.
        others = [torch.full(shape, 7.0) for _ in range(3)]
    hvd.barrier()
    if hvd.rank() != 0:
        handle = submit(x, name=name)
    result = hvd.synchronize(handle)
    if hvd.rank() == 0:
        assert all((other == 7.0).all() for other in others), name
    hvd.barrier()
    return result

def replaced(x):
    x.data = torch.zeros(3)

def refused(change):
    def take_away(x):
        try:
            change(x)
        except RuntimeError as error:
            assert "not resizable" in str(error), error
        else:
            raise AssertionError("torch has given back memory that is in flight")
    return take_away

in_flight("replaced", replaced)
in_flight("set", lambda x: x.set_(torch.ones(4)))
for i, dtype in enumerate((torch.float32, torch.bfloat16, torch.int64)):
    in_flight(f"emptied{i}", refused(lambda x: x.untyped_storage().resize_(0)), dtype=dtype)
    in_flight(f"grown{i}", refused(lambda x: x.resize_(64 * MiB)), dtype=dtype)
for submit in (hvd.allreduce_async, hvd.allgather_async, hvd.reducescatter_async):
    in_flight(submit.__name__, refused(lambda x: x.untyped_storage().resize_(0)), submit=submit)
    in_flight(submit.__name__ + " replaced", replaced, submit=submit)
group = lambda x, name: hvd.grouped_allreduce_async_([x, torch.ones(3)], name=name)
in_flight("of a group", refused(lambda x: x.untyped_storage().resize_(0)), submit=group)
in_flight("of a group, replaced", replaced, submit=group)
parameter = torch.nn.Parameter(torch.ones(2 * MiB))
handle = hvd.allreduce_async_(parameter.data, name="parameter")
hvd.synchronize(handle)
""",
    ),
    "a model with a layer more on one rank": (
        2,
        """
import torch, corro.torch as hvd
from corro._front.checks import TrainingMistake
hvd.init()
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3 - hvd.rank())])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
# Its gradients find no others: without the check, the ranks would wait for each other.
try:
    net(torch.ones(2, 4) * hvd.rank()).sum().backward()
except TrainingMistake as mistake:
    assert "the model's 2.bias is float32 [4] on rank 0 but missing on rank 1" in str(mistake), mistake
else:
    raise AssertionError("nothing was noticed")
""",
    ),
    "memory that a program takes away from numpy in flight": (
        2,
        """
import numpy as np, corro.numpy as hvd
hvd.init()

def refused(array):
    for refcheck in (True, False):
        try:
            array.resize(32 << 20, refcheck=refcheck)
        except ValueError as error:
            assert "cannot resize" in str(error), error
        else:
            raise AssertionError("numpy has given back memory that is in flight")

for name, submit, part in (
    ("in place", hvd.allreduce_async_, slice(None)),
    ("a view", hvd.allreduce_async_, slice(8, None)),
    ("a view of a view", lambda x, name: hvd.allreduce_async_(x[2:], name=name), slice(8, None)),
    ("elsewhere", hvd.allreduce_async, slice(None)),
    ("gathered", hvd.allgather_async, slice(None)),
    ("dealt out", hvd.reducescatter_async, slice(None)),
    ("sent", lambda x, name: hvd.alltoall_async(x, name=name), slice(None)),
):
    x = np.ones(1 << 20)
    if hvd.rank() == 0:
        handle = submit(x[part], name=name)
        refused(x)
    hvd.barrier()
    if hvd.rank() != 0:
        handle = submit(x[part], name=name)
    hvd.synchronize(handle)
    # Once it is through, the array is the program's again.
    x.resize(2 << 20, refcheck=False)
    hvd.barrier()
""",
    ),
    "memory does not grow": (
        2,
        """
import gc, resource, torch, corro.torch as hvd
hvd.init()
x = torch.ones(8)
def resident():
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()
def rounds(n):
    for _ in range(n):
        hvd.allreduce_(x, op=hvd.Max)
        hvd.synchronize(hvd.allreduce_async_(x, op=hvd.Max, name="same"))
        hvd.allgather(x)
rounds(1500)
before = resident()
rounds(4000)
grown = resident() - before
assert grown < 800_000, f"{grown} bytes more after 12000 operations"
""",
    ),
    "init and shutdown many times": (
        2,
        """
import torch, corro.torch as hvd
for i in range(50):
    hvd.init()
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum, name="x").tolist() == [2.0] * 3
    assert hvd.allreduce(torch.ones(1)).item() == 1
    hvd.barrier()
    hvd.shutdown()
    hvd.shutdown()
""",
    ),
    "a forked child is no rank": (
        2,
        """
import os, sys, traceback, numpy as np, corro.numpy as hvd
hvd.init()
hvd.allreduce(np.ones(3), name="before")
def in_child(act):
    child = os.fork()
    if child == 0:
        try:
            act()
        except SystemExit:
            raise
        except BaseException:
            traceback.print_exc()
            os._exit(9)
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
def operate():
    assert hvd.rank() in (0, 1) and hvd.size() == 2
    for operation in (lambda: hvd.allreduce(np.ones(3), name="x"), hvd.barrier, lambda: hvd.join(), hvd.init):
        try:
            operation()
        except ValueError as error:
            assert "was forked from rank" in str(error), error
        else:
            raise AssertionError("an operation in a forked child")
in_child(lambda: None)
in_child(operate)
in_child(hvd.shutdown)
assert hvd.allreduce(np.ones(3), op=hvd.Sum, name="after").tolist() == [2.0] * 3
""",
    ),
    "ranks that wait for different tensors": (
        2,
        """
import numpy as np, corro.numpy as hvd
hvd.init()
mine = "ab"[hvd.rank()]
try:
    hvd.allreduce(np.ones(3), name=mine)
except hvd.HorovodInternalError as error:
    assert not error.retryable, "an elastic job would try it again"
    text = str(error)
    assert "rank 0 on" in text and "waits for 'allreduce.a', which rank 1 has not submitted" in text, text
    assert "waits for 'allreduce.b', which rank 0 has not submitted" in text, text
else:
    raise AssertionError("it never ends")
hvd.shutdown()
""",
    ),
    "a rank that shuts down ends the job for all": (
        2,
        """
import torch, corro.torch as hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 0:
    hvd.shutdown()
else:
    try:
        for i in range(1000):
            hvd.allreduce(torch.ones(1), name="never")
    except hvd.HorovodInternalError as error:
        assert "Horovod has been shut down" in str(error), error
    else:
        raise AssertionError("rank 0 is gone")
""",
    ),
    "horovod static process sets": (
        4,
        """
import numpy as np, corro.numpy as hvd
evens, odds = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])
try:
    hvd.init(process_sets=[evens, hvd.ProcessSet([2, 0])])
except ValueError as error:
    assert "duplicate" in str(error)
hvd.init(process_sets=[evens, odds])
assert (evens.process_set_id, odds.process_set_id) == (1, 2)
mine = odds if hvd.rank() % 2 else evens
assert hvd.allgather(np.array([hvd.rank()]), process_set=mine).tolist() == mine.ranks
try:
    hvd.add_process_set([0, 1])
except ValueError as error:
    assert "HOROVOD_DYNAMIC_PROCESS_SETS=1" in str(error)
hvd.barrier()
hvd.shutdown()
assert evens.process_set_id is None
""",
    ),
    "a timeline from the program": (
        2,
        """
import json, os, tempfile, torch
import corro.torch as hvd
os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
hvd.init()
del os.environ["HOROVOD_TIMELINE"]
path = os.path.join(tempfile.gettempdir(), f"corro-timeline-{os.getpid()}.json")
hvd.start_timeline(path)
hvd.allreduce(torch.ones(3), name="watched")
hvd.stop_timeline()
if hvd.rank() == 0:
    with open(path) as file:
        events = json.load(file)
    os.unlink(path)
    assert any("watched" in str(event) for event in events), events
hvd.barrier()
""",
    ),
    "more unnamed operations than there are names, in different orders": (
        2,
        """
import torch, corro.torch as hvd
hvd.init()
n = 700
def submit():
    return [hvd.allreduce_async(torch.full((2,), float(i)), op=hvd.Sum) for i in range(n)]
def check(handles):
    for i, handle in enumerate(handles):
        assert hvd.synchronize(handle).tolist() == [2.0 * i] * 2, i
# Rank 0 submits them all before it comes to what rank 1 waits for first.
if hvd.rank() == 0:
    handles = submit()
    hvd.broadcast_(torch.ones(1), 0, name="first")
    check(handles)
    hvd.barrier()
else:
    hvd.broadcast_(torch.ones(1), 0, name="first")
    handles = submit()
    hvd.barrier()
    check(handles)
groups = [hvd.grouped_allreduce_async([torch.ones(1), torch.ones(2)], op=hvd.Sum) for _ in range(n)]
for handle in reversed(groups):
    assert [t.sum().item() for t in hvd.synchronize(handle)] == [2, 4]
""",
    ),
    "numpy arrays from the root": (
        2,
        """
import numpy as np, corro.numpy as hvd
hvd.init()
mine = np.arange(6, dtype=np.int16).reshape(2, 3) if hvd.rank() == 1 else None
got = hvd.broadcast(mine, 1)
assert got.dtype == np.int16 and got.tolist() == [[0, 1, 2], [3, 4, 5]]
x = hvd.shared_empty((512, 1024), np.float32)
assert x.shape == (512, 1024) and x.dtype == np.float32
x[...] = hvd.rank()
assert (hvd.allreduce_(x, op=hvd.Sum) == 1).all()
assert hvd.shared_empty((0, 3)).shape == (0, 3)
""",
    ),
}


# One after the other in the same processes, each with an engine of its own.
IN_TURN = """
import pathlib, sys, corro
for path in map(pathlib.Path, sys.argv[1:]):
    print("begins:", path.stem, flush=True)
    exec(compile(path.read_text(), path, "exec"), {})
    if corro.is_initialized():
        if path.stem != "a rank that shuts down ends the job for all":
            corro._native.barrier(0)
        corro.shutdown()
"""


@pytest.mark.parametrize("size", sorted({size for size, _ in JOBS.values()}))
def test_jobs(size: int, tmp_path: Path) -> None:
    script = tmp_path / "in_turn.py"
    script.write_text(IN_TURN)
    parts = []
    for name, (ranks, text) in JOBS.items():
        if ranks == size:
            parts.append(tmp_path / f"{name}.py")
            parts[-1].write_text(text)
    job = run_job(size, sys.executable, str(script), *map(str, parts))
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"


INTERRUPTED = """
import os, signal, sys, threading, time, torch, corro.torch as hvd
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background may have it ignored
hvd.init()

def wait_for(path):
    for _ in range(600):
        if os.path.exists(path):
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} did not appear within a minute")

def interrupted(call, rounds, word):
    x = torch.ones(1 << 16)
    for i in range(rounds):  # many times: then the ranks follow a plan
        hvd.allreduce_(x, op=hvd.Max, name="again")
    first = hvd.rank() == 0
    handle = hvd.allreduce_async_(x, op=hvd.Max, name="again") if call == "synchronize" and first else None
    calls = {
        "allreduce": lambda: hvd.allreduce_(x, op=hvd.Max, name="again"),
        "synchronize": lambda: hvd.synchronize(handle),
        "barrier": hvd.barrier,
        "join": hvd.join,
    }
    if first:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            calls[call]()
        except KeyboardInterrupt:
            open(word, "w").close()
        else:
            raise AssertionError("Ctrl-C had no effect")
        # The engine is as good as before, and what was interrupted is still under way.
        if handle is not None:
            assert not hvd.poll(handle)
            assert hvd.synchronize(handle) is x
        del x
        wait_for(word + " and met")
    else:
        # The other rank waits for this one, which comes only once that one has been interrupted.
        wait_for(word)
        calls["allreduce" if call == "synchronize" else call]()
        open(word + " and met", "w").close()
    if call != "join":
        assert hvd.allreduce(torch.ones(4), op=hvd.Sum).tolist() == [2.0] * 4

for rounds in 1, 60:
    for call in "allreduce", "synchronize", "barrier", "join":
        print(call, "after", rounds, flush=True)
        interrupted(call, rounds, f"{sys.argv[1]} in {call} after {rounds}")
"""


def test_ctrl_c_while_waiting_for_others(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(INTERRUPTED)
    job = run_job(2, sys.executable, str(script), str(tmp_path / "interrupted"))
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"


@pytest.mark.parametrize("wanted", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_ranks_that_wait(wanted: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, time, corro\ncorro.init()\nprint('here', flush=True)\n"
        "time.sleep(600) if corro.rank() else corro._native.barrier(0)\n"
    )
    command = [program(), "run", "-np", "2", sys.executable, str(script), "--mark", str(tmp_path)]
    # Tests that run in the background may have the signal ignored, and programs inherit that.
    heed = functools.partial(signal.signal, wanted, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=heed) as job:  # noqa: PLW1509 - no other threads
        assert job.stdout is not None
        for _ in range(2):
            assert "here" in job.stdout.readline()
        job.send_signal(wanted)
        _, errors = job.communicate(timeout=60)
    assert job.returncode == 128 + wanted, errors
    assert f"signal {wanted:d}" in errors or wanted.name in errors, errors
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(path)]
    assert not left


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _where(add: int) -> tuple[int, int]:
    import corro

    corro.init()
    return corro.rank() + add, corro.size()


def test_a_function_as_a_job() -> None:
    import corro

    assert corro.run(_where, args=(10,), num_proc=2) == [(10, 2), (11, 2)]
    assert corro.run(lambda: "closure", num_proc=1) == ["closure"]
    with pytest.warns(DeprecationWarning):
        assert corro.run(_where, kwargs={"add": 0}, np=1) == [(0, 1)]


def test_parameters_of_run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import corro

    def told() -> str | None:
        print("from a worker")
        return os.environ.get("TOLD")

    hosts = tmp_path / "hosts"
    hosts.write_text("# ours\n\nlocalhost slots=2\n")
    options = {"env": {"TOLD": "yes"}, "hostfile": str(hosts), "use_mpi": True, "disable_cache": True}
    options |= {"start_timeout": 30, "executable": sys.executable, "output_filename": str(tmp_path / "out")}
    assert corro.run(told, num_proc=2, network_interfaces=["lo"], verbose=2, **options) == ["yes", "yes"]
    assert "from a worker" in (tmp_path / "out" / "rank.1" / "stdout").read_text()
    out, err = capfd.readouterr()
    assert "[1]<stdout>:from a worker" in out
    assert "needs no MPI" in err
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.8'\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert corro.run(told, num_proc=1, use_mpi=True) == [None]
    assert "use_mpi has no effect on a function" in capfd.readouterr().err
    for wrong, word in [
        ({"num_proc": 3, "hosts": "localhost:2"}, "more processes"),
        ({"num_proc": 1, "ssh_port": 99999}, "--ssh-port"),
        ({"num_proc": 1, "start_timeout": -1}, "--start-timeout"),
        ({"num_proc": 2, "min_num_proc": 3}, "--min-np"),
        ({"num_proc": 1, "cooldown_range": (5, 1)}, "--blacklist-cooldown-range"),
        ({"num_proc": 1, "hosts": "local host"}, "local host"),
    ]:
        with pytest.raises(ValueError, match=word):
            corro.run(told, **wrong)


def test_run_goes_through_ssh_as_told(tmp_path: Path) -> None:
    import corro

    # In place of ssh: notes how it was called, and refuses.
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\necho "Permission denied" >&2\nexit 255\n')
    ssh.chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{tmp_path}:{path}"
    try:
        with pytest.raises(RuntimeError, match=r"elsewhere\.invalid"):
            corro.run(_where, num_proc=1, hosts="elsewhere.invalid:1", ssh_port=2222, ssh_identity_file="/the/key")
    finally:
        os.environ["PATH"] = path
    called = (tmp_path / "called").read_text()
    assert "2222" in called
    assert "/the/key" in called


def test_the_log_goes_to_standard_error_and_odd_variables_are_told_once() -> None:
    script = """
import os
os.environ["HOROVOD_CYCEL_TIME"] = "1"
import corro
corro.init()
corro.shutdown()
"""
    job = run_job(2, sys.executable, "-c", script, HOROVOD_TORUS_ALLREDUCE="1", CORRO_LOG_HIDE_TIME="1")
    assert job.returncode == 0, job.stderr
    assert job.stdout == ""
    told = [line for line in job.stderr.splitlines() if "HOROVOD_CYCEL_TIME" in line]
    assert len(told) == 1, job.stderr
    assert told[0].startswith("[0]<stderr>:[W "), told
    assert " [0 localhost]: HOROVOD_CYCEL_TIME is set" in told[0], told
    # The launcher has told about what it saw, and no rank repeats it.
    assert job.stderr.count("HOROVOD_TORUS_ALLREDUCE") == 1, job.stderr


def test_a_function_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    import corro

    def fail() -> None:
        raise ValueError("on purpose")

    with pytest.raises(RuntimeError, match="exited with non-zero status") as failed:
        corro.run(fail, num_proc=2)
    # Ours, and the form that programs written for Horovod look for.
    assert str(failed.value).startswith("corro.run failed: rank ")
    assert "\nProcess name: " in str(failed.value)
    assert "\nExit code: 1\n" in str(failed.value)
    with pytest.raises(RuntimeError, match=r"rank \d") as failure:
        corro.run(_where, args=("text",), num_proc=2)
    cause = failure.value.__cause__
    assert isinstance(cause, TypeError)
    assert any("_where" in note for note in getattr(cause, "__notes__", ["_where"])), cause
    assert "(TypeError: " in str(failure.value), "who only prints the message learns what it was"
    # A notebook shows one traceback, the worker's.
    shown = "\n".join(failure.value._render_traceback_())
    assert shown.count("Traceback") == shown.count(", in _where") == 1, shown
    assert "runner/__init__.py" not in shown, shown
    if sys.version_info >= (3, 11):
        assert "Traceback" not in capfd.readouterr().err, "the worker's own would be the second"
    with pytest.raises(ValueError, match="hosts and hostfile"):
        corro.run(fail, hosts="localhost:1", hostfile="hosts")
    with pytest.raises(ValueError, match="use_gloo and use_mpi"):
        corro.run(fail, use_gloo=True, use_mpi=True)
