"""What `corro k8s manifest` writes, held against the schemas of Kubernetes' API. No cluster is needed."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
from typing import Any

import kubernetes_validate
import pytest
import yaml

from corro._command import program

# A release of Kubernetes whose schemas the package has.
RELEASE = "1.36"
COMMAND = ["python", "-c", "print('on: #1')", "on", "1e3", "0o7", "1:30", "~", "- x", "ä\n", ""]
FLAGS = [
    "-n 2",
    "-n 1 --name a",
    "-n 4 --gpus-per-rank 2",
    "-n 4 --cpus 500m --memory 4Gi --shm-size 256Mi",
    "-n 2 --namespace ml --queue team-a --priority-class high",
    "-n 2 --env A=1 --env B=x=y --env C=",
    "-n 2 --node-selector disk=ssd --node-selector kubernetes.io/arch=amd64",
    "-n 2 --secret ours --run-as-user 1000 --read-only-root",
    "-n 2 --network-policy --image-pull-policy Never --time 3600",
    "-n 2 --min-np 1",
    "-n 4 --min-np 2 --max-np 16 --network-policy --gpus-per-rank 1 --memory 8Gi --queue q --time 60",
    "--np 16384 --cpus 1 --memory 1Gi --gpus-per-rank 8 --network-policy --queue q --run-as-user 65534 --read-only-root",
]


def manifest(flags: str) -> list[dict[str, Any]]:
    command = [program(), "k8s", "manifest", *flags.split(), "--image", "registry.example/train:1", "--", *COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("flags", FLAGS)
def test_what_is_written_is_what_the_api_takes(flags: str) -> None:
    objects = manifest(flags)
    for found in objects:
        kubernetes_validate.validate(found, RELEASE, strict=True)
    rank = objects[-1]["spec"]["template"]["spec"]["containers"][0]
    # The reader that Kubernetes' tools use finds every word as it was given. That of an elastic job is its driver's.
    assert rank["command"][-len(COMMAND) :] == COMMAND
    assert all(isinstance(variable.get("value", ""), str) for variable in rank["env"])


def test_the_schemas_notice_mistakes() -> None:
    job = manifest("-n 2")[-1]
    for place, wrong in (("completions", "two"), ("completionsMode", "Indexed")):
        broken = copy.deepcopy(job)
        broken["spec"][place] = wrong
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, RELEASE, strict=True)


def test_every_job_has_a_secret_of_its_own() -> None:
    first, second = (manifest("-n 2")[0]["stringData"]["secret"] for _ in range(2))
    assert len(first) == 64
    assert first != second


def test_what_the_api_would_refuse_is_refused_here() -> None:
    command = [program(), "k8s", "manifest", "-n", "2", "--image", "i", "--memory", "4GB", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "--memory" in done.stderr


TRAIN = """
import numpy as np, corro.numpy as hvd
hvd.init()
total = hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum, name="x")
print("told", hvd.rank(), hvd.size(), float(total[0]), flush=True)
hvd.shutdown()
"""


def pods(flags: str) -> list[dict[str, str]]:
    """The variables of each pod, as Kubernetes would set them. Only the name of pod 0 in DNS is another one here."""
    objects = manifest(flags)
    secret, job = objects[0], objects[-1]
    told = {"metadata.labels['batch.kubernetes.io/controller-uid']": "3f2a"}
    variables = {}
    for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            assert source["secretKeyRef"]["name"] == secret["metadata"]["name"]
            variables[variable["name"]] = secret["stringData"][source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            variables[variable["name"]] = told[source["fieldRef"]["fieldPath"]]
        else:
            variables[variable["name"]] = variable["value"]
    assert variables["MASTER_ADDR"] == "corro-0.corro"
    count = job["spec"]["completions"]
    with socket.create_server(("127.0.0.1", 0)) as server:  # this host may need the port that every pod has to itself
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
    return [{**variables, **here, "JOB_COMPLETION_INDEX": str(index)} for index in range(count)]


@pytest.mark.timeout(120)
def test_what_pods_are_told_is_enough_to_become_a_job() -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN], env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
        )
        for variables in pods("-n 3")
    ]
    try:
        told = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert told == [f"told {rank} 3 6.0\n" for rank in range(3)]
