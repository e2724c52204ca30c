"""Starting a command as Horovod's own launcher does: here that is `corro run`."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corro import _native, runner
from corro._command import program
from corro.common.util import env as environment
from corro.runner.common.util.hosts import SlotInfo
from corro.runner.common.util.settings import Settings
from corro.runner.elastic.discovery import HostDiscovery, HostDiscoveryScript
from corro.runner.elastic.settings import ElasticSettings


def gloo_run(
    settings: Settings,
    nics: Iterable[str] | None,
    env: Mapping[str, str] | None,
    server_ip: str | None,
    command: str | Sequence[str],
) -> None:
    """Runs the command on `settings.num_proc` ranks and waits for its end; `RuntimeError` if it fails.

    `server_ip` is not needed: ranks try all addresses of the launcher.
    """
    _run(flags(settings, nics), env, command)


launch_gloo = gloo_run


def gloo_run_elastic(
    settings: ElasticSettings,
    env: Mapping[str, str] | None,
    command_or_func: str | Sequence[str] | Callable[[], Any],
    executable: str | None = None,
) -> list[Any] | None:
    """As `gloo_run`, for a job whose hosts come and go as `settings.discovery` says. Results if it was given a function."""
    with _script(settings.discovery) as script:
        if callable(command_or_func):
            patience = None if settings.elastic_timeout is None else str(settings.elastic_timeout)
            with environment(HOROVOD_ELASTIC_TIMEOUT=patience):
                return runner.run(command_or_func, env=env, executable=executable, **_elastic_options(settings, script))
        options = {
            "--min-num-proc": settings.min_num_proc,
            "--max-num-proc": settings.max_num_proc,
            "--elastic-timeout": settings.elastic_timeout,
            "--reset-limit": settings.reset_limit,
            "--host-discovery-script": script,
        }
        given = [f"{flag}={value}" for flag, value in options.items() if value is not None]
        if settings.cooldown_range is not None:
            given += ["--blacklist-cooldown-range", *map(str, settings.cooldown_range)]
        # A script says which hosts there are; a list beside it would be a second truth.
        _run([flag for flag in flags(settings) if not flag.startswith("--hosts=")] + given, env, command_or_func)
    return None


launch_gloo_elastic = gloo_run_elastic


def _elastic_options(settings: ElasticSettings, script: str) -> dict[str, Any]:
    """The settings as parameters of `corro.run`."""
    names = ("num_proc", "min_num_proc", "max_num_proc", "reset_limit", "cooldown_range", "ssh_port", "verbose")
    options = {name: getattr(settings, name) for name in (*names, "ssh_identity_file", "output_filename")}
    options["num_proc"] = options["num_proc"] or settings.min_num_proc
    return {
        **options,
        "start_timeout": _seconds(settings.start_timeout),
        "network_interfaces": settings.nics,
        "host_discovery_script": script,
    }


@contextmanager
def _script(discovery: HostDiscovery) -> Iterator[str]:
    """The discovery as a script: its own, or one that prints what a thread here keeps asking it for."""
    if isinstance(discovery, HostDiscoveryScript) and discovery.slots is None:
        yield discovery.discovery_script
        return
    with tempfile.TemporaryDirectory(prefix="corro-hosts-") as directory:
        hosts = Path(directory, "hosts")
        _note(discovery, hosts)
        ended = threading.Event()
        watcher = threading.Thread(target=_keep_noting, args=(discovery, hosts, ended), daemon=True)
        watcher.start()
        try:
            yield f"cat {shlex.quote(str(hosts))}"
        finally:
            ended.set()
            # A discovery that hangs must not keep the job from ending; its thread ends with the process.
            watcher.join(5.0)


def _keep_noting(discovery: HostDiscovery, hosts: Path, ended: threading.Event) -> None:
    while not ended.wait(1.0):
        try:
            _note(discovery, hosts)
        except Exception as error:
            # As with a script that fails: what was known stays.
            if not ended.is_set():
                _native.log_warning(f"asking for hosts failed, so the last answer still counts: {error}")


def _note(discovery: HostDiscovery, hosts: Path) -> None:
    found = discovery.find_available_hosts_and_slots()
    new = hosts.with_suffix(".new")
    new.write_text("".join(f"{host}:{slots}\n" for host, slots in found.items()), encoding="utf-8")
    new.replace(hosts)  # at once: nobody reads half of it


def _run(options: Sequence[str], env: Mapping[str, str] | None, command: str | Sequence[str]) -> None:
    words = shlex.split(command) if isinstance(command, str) else list(command)
    job = [program(), "run", *options, "--", *words]
    code = subprocess.run(job, env=dict(os.environ if env is None else env), check=False).returncode
    if code:
        raise RuntimeError(f"the job failed: `corro run` exited with non-zero status {code}; what it wrote says why.")


def flags(settings: Settings, nics: Iterable[str] | None = None) -> list[str]:
    """The settings as flags of `corro run`."""
    values: dict[str, Any] = {
        "--num-proc": settings.num_proc,
        "--hosts": settings.hosts,
        "--ssh-port": settings.ssh_port,
        "--ssh-identity-file": settings.ssh_identity_file,
        "--start-timeout": _seconds(settings.start_timeout),
        "--output-filename": settings.output_filename,
        "--network-interfaces": ",".join(nics or settings.nics or ()) or None,
    }
    switches = {
        "--tcp": settings.tcp_flag,
        "--prefix-output-with-timestamp": settings.prefix_output_with_timestamp,
        "--verbose": (settings.verbose or 0) >= 2,
    }
    given = [f"{flag}={value}" for flag, value in values.items() if value is not None]
    return given + [flag for flag, wanted in switches.items() if wanted]


def _seconds(timeout: Any) -> Any:
    # Horovod's timeouts are objects that hold their seconds.
    return getattr(timeout, "_timeout", timeout)


def create_slot_env_vars(slot_info: SlotInfo) -> dict[str, str]:
    """What a rank is told about its place."""
    places = ("hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    return {f"HOROVOD_{name.upper()}": str(getattr(slot_info, name)) for name in places}


def create_run_env_vars(server_ip: str, nics: Iterable[str], port: int, elastic: bool = False) -> dict[str, str]:
    """What all ranks of a job are told: where they meet, and over which interfaces."""
    interfaces = list(nics)
    variables = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": server_ip,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if interfaces:
        variables["HOROVOD_GLOO_IFACE"] = interfaces[0]
        variables["NCCL_SOCKET_IFNAME"] = ",".join(interfaces)
    if elastic:
        variables["HOROVOD_ELASTIC"] = "1"
    return variables
