"""An elastic job on a cluster that grows because of it: Ray's own autoscaler starts nodes (raylets of this machine) for
workers that wait. `test_ray_elastic.py` runs it, in a process of its own: a process has one cluster of Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import conftest  # sets what raylets inherit
import ray
import ray_functions as functions

from corro.ray import ElasticRayExecutor

# Where nodes that the autoscaler starts look for the head, whatever they are told.
PORT = 6379
NODE = {"CPU": 1, "object_store_memory": conftest.NODE["object_store_memory"]}


@contextmanager
def growing_cluster(folder: Path, most: int) -> Iterator[str]:
    """The address of a cluster of one node, which Ray may enlarge by `most`. Ray's own helper for such clusters needs a file
    that its package lacks, and ends every other Ray of this machine."""
    types = {
        "ray.head.default": {"resources": NODE, "node_config": {}, "max_workers": 0},
        "more": {"resources": NODE, "node_config": {}, "min_workers": 0, "max_workers": most},
    }
    # What is empty must be there all the same.
    commands = ["initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray"]
    config: dict[str, object] = {f"{name}_commands": [] for name in commands}
    config |= {"auth": {}, "docker": {}, "file_mounts": {}, "cluster_synced_files": [], "rsync_exclude": []}
    config |= {"cluster_name": "growing", "rsync_filter": []}
    config["provider"] = {"type": "fake_multinode", "disable_node_updaters": True, "disable_launch_config_check": True}
    config |= {"max_workers": most, "upscaling_speed": 10, "idle_timeout_minutes": 5}
    config |= {"available_node_types": types, "head_node_type": "ray.head.default"}
    file = folder / "cluster.json"
    file.write_text(json.dumps(config))
    ray_program = str(Path(sys.executable).with_name("ray"))
    argv = [ray_program, "start", "--head", "--block", f"--port={PORT}", f"--autoscaling-config={file}", "--num-cpus=1"]
    argv += [f"--object-store-memory={NODE['object_store_memory']}", "--include-dashboard=false"]
    env = {**os.environ, "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
    head = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield f"127.0.0.1:{PORT}"
    finally:
        head.terminate()
        try:
            head.wait(20)
        finally:
            end_session(head.pid)


def end_session(session: int) -> None:
    """Ends all processes of a session: nodes that the autoscaler has started are in that of the head."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found = int(path.read_text().rpartition(")")[2].split()[3])
            if found == session:
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


def connect(address: str) -> None:
    until = time.monotonic() + 120
    while True:
        try:
            ray.init(address=address)
            return
        except ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def main(folder: Path) -> None:
    with growing_cluster(folder, most=1) as address:
        connect(address)
        assert len(ray.nodes()) == 1, "nobody has asked for more yet"
        settings = ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=2)
        executor = ElasticRayExecutor(settings, cpus_per_slot=1)
        executor.start()
        results = executor.run(lambda: functions.train_elastically(str(folder), 100, 0.05, 2))
        alive = [node for node in ray.nodes() if node["Alive"]]
        print(f"{len(results)} workers on {len(alive)} nodes at the end")
        ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
