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
