"""Which tests run here: those of the framework that scripts/python_test has made an environment for."""

import os
import tempfile

import pytest

# Jobs that fail on purpose leave their flight records here, and nothing behind when the tests are over.
RECORDS = tempfile.TemporaryDirectory(prefix="corro-records-")
os.environ.setdefault("CORRO_FLIGHT_RECORD_DIR", RECORDS.name)

FRAMEWORK = os.environ.get("CORRO_TEST_FRAMEWORK", "torch")

# What no framework is needed for is tested with torch.
WITHOUT_FRAMEWORK = [
    *("*test_jobs.py", "*test_mpi_jobs.py", "*test_ps_jobs.py", "*test_failing.py", "*test_elastic*.py"),
    *("*test_profiler.py", "*test_kubernetes.py", "*test_notebook.py", "unit/*"),
]

collect_ignore_glob = {
    "torch": [
        "*test_tensorflow*.py",
        "*test_keras*.py",
        "*test_jax*.py",
        "*test_mxnet*.py",
        "*test_spark*.py",
        "*test_ray*.py",
    ],
    "tensorflow": ["*test_torch*.py", "*test_jax*.py", "*test_mxnet*.py", "*spark/*", "*ray/*", *WITHOUT_FRAMEWORK],
    "jax": [
        *("*test_torch*.py", "*test_tensorflow*.py", "*test_keras*.py", "*test_mxnet*.py", "*spark/*", "*ray/*"),
        *WITHOUT_FRAMEWORK,
    ],
    "mxnet": [
        *("*test_torch*.py", "*test_tensorflow*.py", "*test_keras*.py", "*test_jax*.py", "*test_typing.py"),
        *("*spark/*", "*ray/*", *WITHOUT_FRAMEWORK),
    ],
    # Only their own folders are run.
    "spark": [],
    # Of the frameworks only torch is there.
    "spark-old": [
        "*test_spark_estimators.py",
        "*test_spark_stores.py",
        "*test_spark_examples.py",
        "*test_spark_connect.py",
        "*test_spark_service.py",
    ],
    "ray": [],
}[FRAMEWORK]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that may take longest come first: several run at a time, and none should be left alone at the end."""

    def limit(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return marker.args[0] if marker else 0

    items.sort(key=limit, reverse=True)
