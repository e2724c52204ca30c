"""One test for all stores: this machine's disk, a server of S3's kind, and Hadoop's own file system, in real servers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corro.spark.common.datamodule import ParquetDataModule
from corro.spark.common.store import FilesystemStore, HDFSStore, Store

pytestmark = pytest.mark.timeout(600)

# Kept from one run to the next: 56 MB.
JARS = Path(__file__).parents[3] / "target" / "homes" / "hadoop"
MINICLUSTER = "https://repo1.maven.org/maven2/org/apache/hadoop/hadoop-client-minicluster/3.5.0/hadoop-client-minicluster-3.5.0.jar"

# A name node and a data node in one process. Java runs the file as it is.
HDFS = """
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

public class Hdfs {
    public static void main(String[] words) throws Exception {
        Configuration conf = new Configuration();
        conf.set("hdfs.minidfs.basedir", words[0]);
        conf.set("dfs.permissions.enabled", "false");
        new MiniDFSCluster.Builder(conf).nameNodePort(Integer.parseInt(words[1])).numDataNodes(1).build();
        System.out.println("ready");
        Thread.sleep(Long.MAX_VALUE);
    }
}
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serving(command: list[str], log: Path, is_ready: Callable[[], bool], **env: str) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **env}, cwd=log.parent)
    try:
        until = time.monotonic() + 400
        while not is_ready():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.2)
        yield
    finally:
        process.kill()
        process.wait()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = _free_port()
    program = os.path.join(os.path.dirname(sys.executable), "moto_server")
    log = tmp_path_factory.mktemp("s3") / "log"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        for _ in _serving([program, "-H", "127.0.0.1", "-p", str(port)], log, lambda: _is_open(port)):
            yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    import pyspark

    jar = JARS / MINICLUSTER.rpartition("/")[2]
    if not jar.exists():
        JARS.mkdir(parents=True, exist_ok=True)
        part = jar.with_suffix(".part")
        with urllib.request.urlopen(MINICLUSTER, timeout=120) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file)
        part.replace(jar)
    folder = tmp_path_factory.mktemp("hdfs")
    (folder / "Hdfs.java").write_text(HDFS, encoding="utf-8")
    port = _free_port()
    log = folder / "log"
    classes = f"{jar}:{os.path.dirname(pyspark.__file__)}/jars/*"
    command = ["java", "-Xmx512m", "-cp", classes, str(folder / "Hdfs.java"), str(folder / "data"), str(port)]
    for _ in _serving(command, log, lambda: log.exists() and "ready" in log.read_text()):
        yield port


@pytest.fixture(params=["local", "s3", "hdfs"])
def store(request: Any, tmp_path: Path) -> FilesystemStore:
    if request.param == "local":
        return Store.create(str(tmp_path))
    if request.param == "s3":
        url = request.getfixturevalue("s3")
        made = Store.create("s3://corro-tests/some/where", storage_options={"client_kwargs": {"endpoint_url": url}})
        if not made.fs.exists("corro-tests"):
            made.fs.mkdir("corro-tests")
        return made
    port = request.getfixturevalue("hdfs")
    made = Store.create(f"hdfs://127.0.0.1:{port}/some/where", driver="native")
    assert isinstance(made, HDFSStore)
    return made


def test_a_store_keeps_runs_and_rows(store: FilesystemStore) -> None:
    import cloudpickle

    checkpoint = store.get_checkpoint_path("first")
    assert checkpoint is not None
    assert not store.exists(checkpoint)
    store.write(checkpoint, b"one")
    store.write(checkpoint, b"two")
    assert store.read(checkpoint) == b"two"
    with store.get_local_output_dir_fn("first")() as local:
        Path(local, "logs").mkdir()
        Path(local, "logs", "events").write_text("x", encoding="utf-8")
        store.sync_fn("first")(local)
    assert store.read(f"{store.get_logs_path('first')}/events") == b"x"

    folder = store.get_train_data_path(0)
    for part in range(2):
        ids = np.arange(part * 50, part * 50 + 50)
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.table({"id": ids, "x": pa.array(np.outer(ids, [1.0, 2.0]).tolist())}), sink, row_group_size=20
        )
        store.write(f"{folder}/part-{part}.parquet", sink.getvalue().to_pybytes())
    assert store.is_parquet_dataset(folder)
    assert store.get_parquet_dataset(folder).read().num_rows == 100
    # As a rank does it: the store has travelled, and opens its own connections.
    there = cloudpickle.loads(cloudpickle.dumps(store))
    seen = []
    for rank in range(2):
        module = ParquetDataModule(folder, "", train_batch_size=16, cur_shard=rank, shard_count=2, store=there)
        for batch in module.train_data():
            assert np.array_equal(batch["x"], np.outer(batch["id"], [1.0, 2.0]))
            seen += batch["id"].tolist()
    assert sorted(seen) == list(range(100))
    assert not [name for name in store.files(store.prefix_path) if "/." in name]
    store.delete(store.prefix_path)
    assert store.files(store.prefix_path) == []
