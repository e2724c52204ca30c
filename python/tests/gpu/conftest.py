"""These tests need a GPU, and run on every rank of a job: `corro run -np 2 python -m pytest python/tests/gpu`. No machine
that runs the other tests has one, so nothing here is collected unless a job is there to run it.
"""

import os

import pytest

if "CORRO_RANK" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def _job():
    import corro

    corro.init()
    yield
    corro.shutdown()
