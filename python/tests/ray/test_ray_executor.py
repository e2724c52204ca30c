"""Fixed jobs on a real Ray of two nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
import ray_functions as functions
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from corro.ray import BaseHorovodWorker, RayExecutor

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def executor(ray_cluster: Any) -> Iterator[Callable[..., RayExecutor]]:
    """Makes executors, which are ended with the test."""
    made: list[RayExecutor] = []

    def make(**arguments: Any) -> RayExecutor:
        made.append(RayExecutor(RayExecutor.create_settings(timeout_s=60), **arguments))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def test_results_come_by_rank_and_workers_stay(executor: Callable[..., RayExecutor]) -> None:
    job = executor(num_workers=3)
    job.start(extra_env_vars={"SAID_BY_THE_DRIVER": 7})
    first = job.run(functions.add_up, args=[1.0], kwargs={"scale": 2.0})
    assert [told["rank"] for told in first] == [0, 1, 2]
    assert {told["size"] for told in first} == {3}
    assert [told["sum"] for told in first] == [12.0] * 3
    assert {told["said"] for told in first} == {"7"}
    assert not any(told["secret on a command line"] for told in first)
    again = ray.get(job.run_remote(functions.add_up))
    assert [told["pid"] for told in again] == [told["pid"] for told in first]
    assert [told["sum"] for told in again] == [3.0] * 3


def test_hosts_have_as_many_workers_each_as_was_asked(executor: Callable[..., RayExecutor]) -> None:
    job = executor(num_hosts=2, num_workers_per_host=2)
    job.start()
    told = job.run(functions.add_up)
    assert [one["local"] for one in told] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert [one["cross"] for one in told] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert told[0]["node"] == told[1]["node"] != told[2]["node"] == told[3]["node"]
    assert {one["node"] for one in told} == {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def test_executables_live_between_calls(executor: Callable[..., RayExecutor]) -> None:
    job = executor(num_workers=2)
    job.start(executable_cls=functions.Counter, executable_args=[10], executable_kwargs={"step": 5})
    assert job.execute(lambda counter: counter.next()) == [15, 15]
    assert job.execute_single(lambda counter: counter.next()) == 20
    assert job.execute(lambda counter: counter.next()) == [25, 20]
    assert job.execute(lambda counter: os.environ["HOROVOD_RANK"]) == ["0", "1"]


def test_workers_see_all_gpus_of_the_job_on_their_node(executor: Callable[..., RayExecutor]) -> None:
    job = executor(num_hosts=2, num_workers_per_host=2, use_gpu=True)
    job.start()
    assert [one["gpus"] for one in job.run(functions.add_up)] == ["0,1"] * 4


def test_what_a_rank_raises_is_raised_here_and_names_the_rank(executor: Callable[..., RayExecutor]) -> None:
    job = executor(num_workers=2)
    job.start()
    began = time.monotonic()
    with pytest.raises(ValueError, match="no such column") as failed:
        job.run(functions.fail_on, args=[1])
    assert "rank 1 of 2" in str(failed.value)
    assert any("rank 1 of 2 on node" in note for note in getattr(failed.value, "__notes__", ["rank 1 of 2 on node"]))
    # The other rank waits for the one that has failed; who called `run` does not.
    assert time.monotonic() - began < 60


def test_a_rank_that_dies_is_named_although_others_fail_first(executor: Callable[..., RayExecutor]) -> None:
    job = executor(num_workers=2)
    job.start()
    with pytest.raises(RayActorError, match=r"rank 1 of 2 on node \w+ was lost"):
        job.run(functions.die_on, args=[1])
    job.shutdown()
    job.start()
    assert [told["rank"] for told in job.run(functions.add_up)] == [0, 1]


def test_an_executable_that_fails_leaves_nothing_behind(executor: Callable[..., RayExecutor]) -> None:
    job = executor(num_workers=2)
    with pytest.raises(TypeError):
        job.start(executable_cls=functions.Counter)  # it wants an argument
    assert job.workers == []
    with pytest.raises(RuntimeError, match="start"):
        job.run(functions.add_up)


def test_more_than_there_is_names_what_there_is(executor: Callable[..., RayExecutor], ray_cluster: Any) -> None:
    job = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=1), num_workers=9)
    with pytest.raises(TimeoutError, match=r"9 bundles .* has 4 CPUs"):
        job.start()
    two = executor(num_workers=2, num_hosts=2)
    with pytest.raises(AssertionError):
        two.start()


def test_a_second_start_is_refused(executor: Callable[..., RayExecutor]) -> None:
    job = executor(num_workers=1)
    job.start()
    with pytest.raises(RuntimeError, match="shutdown"):
        job.start()


def test_the_callers_placement_group_is_used_and_kept(ray_cluster: Any) -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}, {"CPU": 1}], strategy="PACK")
    assert group.wait(30)

    @ray.remote(num_cpus=1)
    def trial() -> list[int]:
        job = RayExecutor(RayExecutor.create_settings(), num_workers=2)
        job.start()
        told = job.run(functions.add_up)
        job.shutdown()
        return [one["rank"] for one in told]

    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    assert ray.get(trial.options(scheduling_strategy=strategy).remote()) == [0, 1]
    assert placement_group_table(group)["state"] == "CREATED"
    remove_placement_group(group)


def test_a_worker_of_ones_own(ray_cluster: Any) -> None:
    worker = ray.remote(BaseHorovodWorker).options(num_cpus=1).remote(world_rank=1, world_size=2)
    variables = ray.get(worker.env_vars.remote())
    assert (variables["HOROVOD_RANK"], variables["HOROVOD_SIZE"]) == ("1", "2")
    assert variables["HOROVOD_HOSTNAME"] == ray.get(worker.node_id.remote())
    ray.get(worker.update_env_vars.remote({"A": 1}))
    assert ray.get(worker.env_vars.remote())["A"] == "1"
    assert ray.get(worker.hostname.remote()) == os.uname().nodename
    ray.kill(worker)
