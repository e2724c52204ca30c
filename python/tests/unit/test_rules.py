"""Rules that need no job: arguments, process sets, samplers, helpers."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

import corro
from corro._errors import HorovodInternalError
from corro._front import arguments
from corro._front.process_sets import ProcessSet, global_process_set
from corro.common import util


def test_op_and_average():
    some = ProcessSet([0])
    assert arguments.reduction(None, None, some) == corro.Average
    assert arguments.reduction(corro.Max, None, some) == corro.Max
    with pytest.warns(DeprecationWarning):
        assert arguments.reduction(None, True, some) == corro.Average
    with pytest.warns(DeprecationWarning):
        assert arguments.reduction(None, False, some) == corro.Sum
    with pytest.raises(ValueError, match="supersedes average"):
        arguments.reduction(corro.Sum, False, some)
    with pytest.raises(NotImplementedError):
        arguments.reduction(corro.Adasum, None, some)
    assert arguments.reduction(corro.Adasum, None, global_process_set) == corro.Adasum


def test_numbers_of_the_ops():
    numbers = (corro.Average, corro.Sum, corro.Adasum, corro.Min, corro.Max, corro.Product)
    assert numbers == tuple(range(6))


def test_reducescatter_ops_and_rows():
    assert arguments.scatter_reduction(corro.Sum) == corro.Sum
    with pytest.raises(HorovodInternalError):
        arguments.scatter_reduction(corro.Max)
    assert arguments.rows_per_rank(7, 3) == [3, 2, 2]


def test_process_set_before_it_is_registered():
    some = ProcessSet([2, 0])
    assert (some.ranks, some.process_set_id, some.size(), some.rank()) == ([0, 2], None, None, None)
    assert str(some) == "ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)"
    for wrong in (["a"], "01", 3, [0.5], [True]):
        with pytest.raises(ValueError, match=r"."):
            ProcessSet(wrong)


def test_before_init():
    assert not corro.is_initialized()
    for function in (corro.rank, corro.size, corro.local_rank, corro.local_size, corro.cross_rank, corro.cross_size):
        with pytest.raises(ValueError, match=r"has not been initialized; use hvd.init\(\)"):
            function()
    corro.shutdown()


@pytest.mark.parametrize("comm", [3, object()])
def test_init_refuses_what_is_no_communicator(comm):
    with pytest.raises(ValueError, match="comm"):
        corro.init(comm)


def test_split_list():
    assert util.split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]


def test_versions():
    assert util.is_version_greater_equal_than("2.15.0+cu130", "2.9.1")
    assert not util.is_version_greater_equal_than("1.9", "1.10.0")
    for wrong in (("1.0.0", "1.0"), (1, "1.0.0")):
        with pytest.raises(ValueError, match="version"):
            util.is_version_greater_equal_than(*wrong)


def test_env_is_put_back(monkeypatch):
    monkeypatch.setenv("CORRO_TEST_A", "before")
    with util.env(CORRO_TEST_A="inside", CORRO_TEST_B="new", CORRO_TEST_C=None):
        assert (os.environ["CORRO_TEST_A"], os.environ["CORRO_TEST_B"]) == ("inside", "new")
    assert os.environ["CORRO_TEST_A"] == "before"
    assert "CORRO_TEST_B" not in os.environ


def test_async_loader():
    from corro.data import AsyncDataLoaderMixin, BaseDataLoader

    class Numbers(BaseDataLoader):
        def __len__(self):
            return 3

        def _iterate(self):
            yield from range(3)

        def _process_batch(self, batch):
            return batch * 10

    class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
        pass

    class Failing(AsyncDataLoaderMixin, Numbers):
        def _iterate(self):
            yield 1
            raise OSError("gone")

    for size in (0, 1, 64):
        loader = AsyncNumbers(size)
        assert [list(loader), list(loader)] == [[0, 10, 20]] * 2
        loader.close_async_loader()
    with pytest.raises(OSError, match="gone"):
        list(Failing(4))


def test_host_assignments():
    from corro.runner.common.util.hosts import get_host_assignments, parse_hosts

    slots = get_host_assignments(parse_hosts("a:2,b:1"), 3)
    assert [(s.hostname, s.rank, s.local_rank, s.cross_rank, s.local_size, s.cross_size) for s in slots] == [
        ("a", 0, 0, 0, 2, 2),
        ("a", 1, 1, 0, 2, 1),
        ("b", 2, 0, 1, 1, 2),
    ]
    assert len(get_host_assignments(parse_hosts("a:4"), 1, 2)) == 2
    with pytest.raises(ValueError, match="more processes"):
        get_host_assignments(parse_hosts("a:1"), 2)
    with pytest.raises(ValueError, match="slots"):
        parse_hosts("a")


def test_rank_from_the_environment(monkeypatch):
    from corro.runner.common.util.env import get_env_rank_and_size

    for name in ("CORRO_RANK", "CORRO_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "3")
    with pytest.raises(RuntimeError, match="PMI_SIZE"):
        get_env_rank_and_size()
    monkeypatch.setenv("PMI_SIZE", "4")
    assert get_env_rank_and_size() == (3, 4)


def test_stubs_name_what_the_extension_has():
    from corro import _native

    stubs = Path(corro.__file__).with_name("_native.pyi").read_text(encoding="utf-8")
    named = {node.name for node in ast.parse(stubs).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert named == {name for name in dir(_native) if not name.startswith("_")}


def test_horovods_launcher_by_its_parts(tmp_path, monkeypatch):
    from corro.runner import gloo_run, js_run, launch, mpi_run
    from corro.runner.common.util.hosts import get_host_assignments, parse_hosts
    from corro.runner.common.util.settings import Settings

    monkeypatch.setattr(
        "sys.argv", ["horovodrun", "-np", "4", "-H", "a:2,b:2", "--verbose", "python", "x.py", "-p", "1"]
    )
    given = launch.parse_args()
    assert (given.num_proc, given.hosts, given.verbose, given.ssh_port) == (4, "a:2,b:2", True, None)
    assert given.command == ["python", "x.py", "-p", "1"]

    settings = Settings(num_proc=2, verbose=2, ssh_port=22, output_filename=str(tmp_path / "out"))
    assert gloo_run.flags(settings, ["eth0"]) == [
        *("--num-proc=2", "--ssh-port=22", f"--output-filename={tmp_path / 'out'}"),
        *("--network-interfaces=eth0", "--verbose"),
    ]
    settings.ssh_port = None
    gloo_run.gloo_run(settings, None, None, None, ["sh", "-c", "echo $CORRO_RANK of $CORRO_SIZE"])
    assert "1 of 2" in (tmp_path / "out" / "rank.1" / "stdout").read_text()
    with pytest.raises(RuntimeError, match="non-zero status 3"):
        gloo_run.gloo_run(Settings(num_proc=1), None, None, None, "sh -c 'exit 3'")
    first = get_host_assignments(parse_hosts("a:2"), 2)[1]
    assert gloo_run.create_slot_env_vars(first)["HOROVOD_LOCAL_RANK"] == "1"

    # In place of mpirun: says who it is, or how it was called.
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5" || echo "$@" > {tmp_path}/called\n'
    )
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert mpi_run.mpi_available()
    assert mpi_run.is_open_mpi()
    assert not mpi_run.is_mpich()
    mpi_run.mpi_run(Settings(num_proc=2, hosts="a:2", extra_mpi_args="-x A"), None, None, ["python", "x.py"])
    called_as = (tmp_path / "called").read_text()
    assert "-np 2 -H a:2 -bind-to none -map-by slot" in called_as
    assert called_as.endswith("-x A python x.py\n")
    called = []
    launch.run_controller(None, called.clear, True, lambda: called.append("mpi"), None, called.clear)
    assert called == ["mpi"]
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match="corro run"):
        mpi_run.mpi_run(Settings(num_proc=2), None, None, ["true"])

    monkeypatch.delenv("LSB_JOBID", raising=False)
    called.clear()
    launch.run_controller(None, lambda: called.append("gloo"), None, called.clear, None, called.clear)
    assert called == ["gloo"]
    for use_mpi, use_jsrun, word in [(True, None, "has not been built"), (None, True, "LSB_JOBID")]:
        with pytest.raises(ValueError, match=word):
            launch.run_controller(None, called.clear, use_mpi, called.clear, use_jsrun, called.clear)
    with pytest.raises(RuntimeError, match="jsrun"):
        js_run.js_run(None, None, None, None)
    assert not js_run.is_jsrun_installed()


def test_what_mpirun_and_jsrun_are_told(tmp_path, monkeypatch):
    from corro.runner import js_run, mpi_run
    from corro.runner.common.util.settings import Settings

    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5" || echo "$@" > {tmp_path}/called\n'
    )
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CORRO_TIMEOUT", "7")
    given = Settings(num_proc=2, nics=["lo"], ssh_port=12, output_filename="out", prefix_output_with_timestamp=True)
    mpi_run.mpi_run(given, None, None, "true")
    called_as = (tmp_path / "called").read_text()
    for words in [
        "--mca btl_tcp_if_include lo",
        "--mca plm_rsh_args -p 12",
        "--output-directory out",
        "--timestamp-output",
        "-x CORRO_INTERFACE",
        "-x CORRO_TIMEOUT",
    ]:
        assert words in called_as
    jsrun = tmp_path / "jsrun"
    jsrun.write_text(f'#!/bin/sh\necho "$@" $CORRO_INTERFACE > {tmp_path}/called; exit 3\n')
    jsrun.chmod(0o755)
    with pytest.raises(RuntimeError, match="non-zero status 3"):
        js_run.js_run(Settings(num_proc=2), ["lo"], None, ["python", "x.py"])
    called_as = (tmp_path / "called").read_text()
    assert called_as == "--nrs 2 --tasks_per_rs=1 --cpu_per_rs=1 --gpu_per_rs=1 --bind=none python x.py lo\n"
    with pytest.raises(ValueError, match="ssh_port"):
        js_run.js_run(Settings(num_proc=2, ssh_port=12), None, None, "true")


def test_knobs_have_two_names(monkeypatch):
    from corro._environment import flag, setting

    assert setting("OVERLAP") is None
    assert flag("OVERLAP", True)
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    assert flag("DYNAMIC_PROCESS_SETS")
    monkeypatch.setenv("CORRO_DYNAMIC_PROCESS_SETS", "0")
    assert not flag("DYNAMIC_PROCESS_SETS")
    for text, wanted in [("1", True), ("true", True), ("2x", True), ("auto", True), ("off", False), ("x", False)]:
        monkeypatch.setenv("CORRO_OVERLAP", text)
        assert flag("OVERLAP", True) == wanted, text
    with pytest.raises(KeyError):
        setting("NO_SUCH_KNOB")
