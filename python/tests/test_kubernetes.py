"""What `corro k8s manifest` writes, held against the schemas of Kubernetes' API. No cluster is needed."""

from __future__ import annotations

import copy
import subprocess
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
    # The reader that Kubernetes' tools use finds every word as it was given.
    assert rank["command"] == COMMAND
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
