"""These tests run on every rank of a job that `test_jobs.py` starts; alone they are not collected."""

import os

import pytest

if "CORRO_RANK" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def _job():
    import corro

    corro.init(process_sets="dynamic")
    yield
    corro.shutdown()


@pytest.fixture(autouse=True)
def _together(request):
    """Every test begins with all ranks in it: if one fails elsewhere, the others say in which test they were."""
    from corro._front.objects import allgather_object

    here = request.node.nodeid
    assert allgather_object(here, "test") == [here] * _size()


def _size():
    import corro

    return corro.size()
