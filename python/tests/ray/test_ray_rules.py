"""What is decided about jobs on Ray, without a Ray."""

from __future__ import annotations

import warnings

import pytest

from corro._errors import HorovodInternalError
from corro.ray import ElasticRayExecutor, RayExecutor, ray_logger
from corro.ray._devices import visible
from corro.ray._fixed import culprit
from corro.ray._seats import seats
from corro.ray._slots import ANYWHERE, Change, needed, pause, slots_of
from corro.ray.elastic_v2 import RayHostDiscovery
from corro.ray.runner import Coordinator, MiniSettings
from corro.ray.utils import detect_nics, nics_to_env_var


def test_seats_count_ranks_on_their_nodes_and_across_them() -> None:
    found = seats(["a", "b", "a", "c", "a", "b"])
    assert [(seat.local_rank, seat.local_size) for seat in found] == [(0, 3), (0, 2), (1, 3), (0, 1), (2, 3), (1, 2)]
    assert [(seat.cross_rank, seat.cross_size) for seat in found] == [(0, 3), (1, 3), (0, 2), (2, 3), (0, 1), (1, 2)]
    assert found[4].variables()["HOROVOD_HOSTNAME"] == "a"
    assert found[4].variables()["HOROVOD_RANK"] == "4"


def test_a_coordinator_wants_all_ranks() -> None:
    coordinator = Coordinator(MiniSettings())
    coordinator.register("h1", "a", 0)
    coordinator.register("h2", "b", 2)
    with pytest.raises(ValueError, match="rank 1 has not registered"):
        coordinator.finalize_registration()
    coordinator.register("h1", "a", 1)
    assert coordinator.node_id_string == "a:2,b:1"
    assert (coordinator.world_size, coordinator.hostnames) == (3, {"h1", "h2"})
    assert coordinator.finalize_registration()[2]["HOROVOD_CROSS_RANK"] == "1"
    found = coordinator.establish_rendezvous()
    assert found["MASTER_ADDR"] == "h1"
    assert 20_000 <= int(found["MASTER_PORT"]) < 30_000
    shared = coordinator.establish_rendezvous("10.0.0.1", 1234)
    assert (shared["MASTER_ADDR"], shared["MASTER_PORT"]) == ("10.0.0.1", "1234")
    assert shared["CORRO_SECRET"] != coordinator.establish_rendezvous("10.0.0.1", 1234)["CORRO_SECRET"]


@pytest.mark.parametrize(
    ("wanted", "present", "most", "change"),
    [
        ({ANYWHERE: 2}, {}, None, Change([ANYWHERE, ANYWHERE], [])),
        ({ANYWHERE: 2}, {0: ANYWHERE}, 2, Change([ANYWHERE], [])),
        ({"a": 2, "b": 1}, {0: "a", 1: "b"}, None, Change(["a"], [])),
        ({"a": 1}, {0: "a", 1: "b", 2: "b"}, None, Change([], [2, 1])),
        ({"a": 1}, {0: "a", 3: "a"}, None, Change([], [3])),
        ({"a": 3, "b": 3}, {0: "a"}, 2, Change(["a"], [])),
        ({"a": 3}, {0: "a", 1: "a", 2: "a"}, 2, Change([], [2])),
        ({}, {}, None, Change([], [])),
    ],
)
def test_actors_are_started_and_let_go_as_hosts_come_and_go(
    wanted: dict[str, int], present: dict[int, str], most: int | None, change: Change
) -> None:
    found = needed(wanted, present, most)
    assert (list(found.start), list(found.stop)) == (change.start, change.stop)


def test_slots_are_counted_by_what_is_scarcest_on_living_nodes() -> None:
    def node(address: str, alive: bool = True, **resources: float) -> dict[str, object]:
        return {"Alive": alive, "NodeManagerAddress": address, "Resources": resources}

    nodes = [node("a", CPU=8, GPU=2), node("b", CPU=3), node("c", alive=False, CPU=8), node("a", CPU=2), node("d")]
    assert slots_of(nodes, cpus=2, gpus=0) == {"a": 5, "b": 1}
    assert slots_of(nodes, cpus=1, gpus=1) == {"a": 2}
    assert slots_of(nodes, cpus=0, gpus=0) == {}


def test_an_actor_that_fails_again_and_again_is_started_ever_later() -> None:
    assert [pause(failures) for failures in (0, 1, 2, 3, 4, 9, 99)] == [0, 0, 1, 2, 4, 30, 30]


@pytest.mark.parametrize(
    ("own", "on_node", "local_rank", "seen"),
    [
        (["2"], 4, 0, "2,0,1,3"),
        (["2"], 4, 1, "0,2,1,3"),
        (["0"], 2, 1, "1,0"),
        (["0", "1"], 4, 1, "2,0,1,3"),
        # Names that are no numbers, and more ranks than GPUs: at least its own.
        (["GPU-7"], 0, 3, "GPU-7"),
    ],
)
def test_the_gpu_of_the_local_rank_is_the_ranks_own(own: list[str], on_node: int, local_rank: int, seen: str) -> None:
    found = visible(own, on_node, local_rank).split(",")
    assert ",".join(found) == seen
    assert len(set(found)) == len(found)


def test_who_failed_because_of_others_is_not_to_blame() -> None:
    lost = HorovodInternalError("rank 1 is gone")
    assert culprit({0: lost}) is None
    assert culprit({0: lost, 3: ValueError("b"), 1: ValueError("a")}) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num_workers": 2, "max_workers": 3}, "max_workers"),
        ({"min_workers": 0, "max_workers": 3}, "max_workers"),
        ({"num_workers": 2, "min_workers": 1}, "min_workers"),
        ({"num_workers": 2, "gpus_per_worker": 1}, "use_gpu"),
        ({"num_workers": 2, "gpus_per_worker": 0, "use_gpu": True}, "gpus_per_worker"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        RayExecutor(RayExecutor.create_settings(), **arguments)  # type: ignore[arg-type]


def test_a_key_is_written_for_its_owner_only(tmp_path: object) -> None:
    path = f"{tmp_path}/key"
    RayExecutor.create_settings(ssh_identity_file=path, ssh_str="secret")
    RayExecutor.create_settings(ssh_identity_file=path, ssh_str="another")
    with open(path, encoding="utf-8") as file:
        assert file.read() == "secret"
        import os

        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600


def test_old_names_of_elastic_settings() -> None:
    with pytest.warns(DeprecationWarning, match="min_np"):
        settings = ElasticRayExecutor.create_settings(min_np=2)
    assert (settings.min_num_proc, settings.max_num_proc, settings.elastic_timeout) == (2, None, 600)
    with pytest.raises(ValueError, match=r"settings\.discovery is None"):
        ElasticRayExecutor(settings, override_discovery=False)
    assert RayHostDiscovery(cpus_per_worker=2).cpus_per_slot == 2


def test_interfaces_become_variables() -> None:
    assert detect_nics(MiniSettings(nics={"b", "a"})) == {"a", "b"}
    assert nics_to_env_var({"b", "a"}) == {"HOROVOD_GLOO_IFACE": "a,b", "NCCL_SOCKET_IFNAME": "a,b"}
    assert nics_to_env_var(set()) == {}


def test_a_logger_to_whom_nobody_listens_says_so_once() -> None:
    ray_logger.configure(None)
    with pytest.warns(UserWarning, match="no callback that takes this"):
        ray_logger.log({"loss": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ray_logger.log({"loss": 2})
