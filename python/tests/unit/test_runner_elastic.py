"""Horovod's parts of an elastic launch: which hosts there are, and a job on them."""

import sys
import time

import pytest

from corro.runner import gloo_run, js_run
from corro.runner.common.util.settings import Settings
from corro.runner.elastic import discovery
from corro.runner.elastic.settings import ElasticSettings
from corro.runner.elastic.worker import HostUpdateResult


def test_a_discovery_script(tmp_path):
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho a:2\necho\necho b\necho a:2\n")
    script.chmod(0o755)
    found = discovery.HostDiscoveryScript(str(script), 4).find_available_hosts_and_slots()
    assert found == {"a": 2, "b": 4}
    with pytest.raises(ValueError, match="slots"):
        discovery.HostDiscoveryScript(str(script)).find_available_hosts_and_slots()
    with pytest.raises(RuntimeError, match="non-zero status 3"):
        discovery.HostDiscoveryScript("exit 3", 1).find_available_hosts_and_slots()
    with pytest.raises(NotImplementedError):
        discovery.HostDiscovery().find_available_hosts_and_slots()


def test_what_has_changed():
    hosts = discovery.FixedHosts({"a": 2, "b": 1})
    manager = discovery.HostManager(hosts)
    assert manager.update_available_hosts() == HostUpdateResult.added
    assert manager.update_available_hosts() == HostUpdateResult.no_update
    assert manager.current_hosts.count_available_slots() == 3
    for found, change in [
        ({"c": 1, "b": 1, "a": 2}, HostUpdateResult.added),
        ({"c": 1, "b": 2, "a": 1}, HostUpdateResult.mixed),
        ({"b": 2, "a": 1}, HostUpdateResult.removed),
    ]:
        hosts.set(found)
        assert manager.update_available_hosts() == change
    # Who was there before comes first, so that ranks stay where they are.
    assert manager.current_hosts.host_assignment_order == ["a", "b"]
    manager.blacklist("a")
    assert manager.is_blacklisted("a")
    assert manager.current_hosts.host_assignment_order == ["b"]
    assert manager.update_available_hosts() == HostUpdateResult.no_update
    assert manager.current_hosts.available_hosts == {"b"}


def test_a_blacklisted_host_comes_back(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    manager = discovery.HostManager(discovery.FixedHosts({"a": 1}), (1, 10))
    manager.update_available_hosts()
    for low, high in [(2, 3), (4, 5), (8, 9), (10, 10)]:
        manager.blacklist("a")
        now += low - 0.01
        assert manager.update_available_hosts() == HostUpdateResult.no_update
        now += high - low + 0.02
        assert manager.update_available_hosts() == HostUpdateResult.added
    for wrong in [(0, 5), (5, 1), (1, 4000)]:
        with pytest.raises(ValueError, match="cooldown_range"):
            discovery.HostManager(discovery.FixedHosts({}), wrong)


class Ours(discovery.HostDiscovery):
    asked = 0

    def find_available_hosts_and_slots(self):
        self.asked += 1
        return {"localhost": 2}


def test_a_job_on_hosts_of_our_own(tmp_path):
    ours = Ours()
    settings = ElasticSettings(
        ours, 2, 2, 120, 3, cooldown_range=(1, 5), num_proc=2, output_filename=str(tmp_path / "out")
    )
    assert settings.elastic
    script = "import corro\ncorro.init()\nprint(corro.rank(), 'of', corro.size())"
    gloo_run.gloo_run_elastic(settings, None, [sys.executable, "-c", script])
    assert "1 of 2" in (tmp_path / "out" / "rank.1" / "stdout").read_text()
    assert ours.asked

    def who():
        import corro

        corro.init()
        return corro.rank()

    assert gloo_run.gloo_run_elastic(settings, None, who) == [0, 1]
    settings.elastic_timeout = 1  # for the host, which is blacklisted then
    with pytest.raises(RuntimeError, match="non-zero status"):
        gloo_run.gloo_run_elastic(settings, None, "sh -c 'exit 3'")


def test_variables_of_a_job():
    told = gloo_run.create_run_env_vars("10.0.0.1", ["eth0", "eth1"], 99, elastic=True)
    assert told["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "99"
    assert told["HOROVOD_GLOO_IFACE"] == "eth0"
    assert told["NCCL_SOCKET_IFNAME"] == "eth0,eth1"
    assert told["HOROVOD_ELASTIC"] == "1"


def test_a_rankfile_for_jsrun(tmp_path):
    path = js_run.generate_jsrun_rankfile(Settings(hosts="a:2,b:2", num_proc=3), str(tmp_path / "file"))
    ranks = [line for line in (tmp_path / "file").read_text().splitlines() if line.startswith("rank:")]
    assert path == str(tmp_path / "file")
    assert [line.split(";")[0] for line in ranks] == [
        "rank: 0: { hostname: a",
        "rank: 1: { hostname: a",
        "rank: 2: { hostname: b",
    ]
    with pytest.raises(ValueError, match="more than the slots"):
        js_run.generate_jsrun_rankfile(Settings(hosts="a:1", num_proc=3))
