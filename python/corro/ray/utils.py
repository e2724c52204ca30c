"""Small things that programs for Horovod on Ray reach for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

__all__ = ["detect_nics", "nics_to_env_var"]


def detect_nics(settings: Any, all_host_names: Any = None, node_workers: Any = None) -> set[str]:
    """The network interfaces that `settings` names. None is needed: ranks find a way to each other by themselves.

    Example:
        >>> from corro.ray.runner import MiniSettings
        >>> from corro.ray.utils import detect_nics
        >>> detect_nics(MiniSettings(nics={"eth0"}))
        {'eth0'}
    """
    return set(settings.nics or ())


def nics_to_env_var(nics: Collection[str]) -> dict[str, str]:
    """The variables by which ranks are told to use these interfaces only.

    Example:
        >>> from corro.ray.utils import nics_to_env_var
        >>> nics_to_env_var({"eth0"})
        {'HOROVOD_GLOO_IFACE': 'eth0', 'NCCL_SOCKET_IFNAME': 'eth0'}
    """
    if not nics:
        return {}
    names = ",".join(sorted(nics))
    return {"HOROVOD_GLOO_IFACE": names, "NCCL_SOCKET_IFNAME": names}
