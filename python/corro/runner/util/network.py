"""The addresses of this machine, and free ports. Nothing here sends or takes a message."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import random
import socket
import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

Server = TypeVar("Server")

__all__ = [
    "filter_local_addresses",
    "find_port",
    "get_driver_ip",
    "get_local_host_addresses",
    "get_local_host_intfs",
    "get_local_intfs",
    "resolve_host_address",
]

# Linux's numbers for "which interfaces have an IPv4 address".
_SIOCGIFCONF = 0x8912
_ENTRY = 40


def _addresses_by_interface() -> dict[str, list[str]]:
    """The IPv4 addresses of each interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        room = 64
        while True:
            buffer = array.array("B", bytes(room * _ENTRY))
            request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
            used = struct.unpack("iL", fcntl.ioctl(asked.fileno(), _SIOCGIFCONF, request))[0]
            if used < len(buffer):
                break
            room *= 2
    found: dict[str, list[str]] = {}
    content = buffer.tobytes()
    for start in range(0, used, _ENTRY):
        name = content[start : start + 16].split(b"\0", 1)[0].decode()
        # An alias such as eth0:1 is an address more of eth0.
        found.setdefault(name.split(":")[0], []).append(socket.inet_ntoa(content[start + 20 : start + 24]))
    return found


def get_local_host_addresses() -> list[str]:
    """All IPv4 addresses of this machine."""
    return [address for addresses in _addresses_by_interface().values() for address in addresses]


def get_local_intfs(nic: str | None = None) -> dict[str, list[tuple[str, int]]]:
    """The interfaces that have an address, or just `nic`, each with its addresses; the port is 0, for any."""
    return {
        name: [(address, 0) for address in addresses]
        for name, addresses in _addresses_by_interface().items()
        if nic is None or name == nic
    }


def get_local_host_intfs() -> set[str]:
    """The names of the interfaces that have an address."""
    return set(_addresses_by_interface())


def resolve_host_address(host_name: str) -> str | None:
    """The IPv4 address of a host; None if its name is not known."""
    try:
        return socket.gethostbyname(host_name)
    except OSError:
        return None


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """Those of the hosts that are not this machine. A name that cannot be resolved is another machine's."""
    own = {*get_local_host_addresses(), "127.0.0.1", "127.0.1.1"}
    return [name for name in all_host_names if resolve_host_address(name) not in own]


def get_driver_ip(nics: Iterable[str]) -> str:
    """An address of this machine on one of the interfaces; on the first of them that has one."""
    wanted, known = list(nics), _addresses_by_interface()
    for name in wanted:
        for address in known.get(name, ()):
            if not ipaddress.ip_address(address).is_unspecified:
                return address
    raise RuntimeError(
        f"none of the interfaces {', '.join(wanted) or '(none given)'} has an IPv4 address here. "
        f"There are: {', '.join(sorted(known)) or 'none'}."
    )


def find_port(server_factory: Callable[[tuple[str, int]], Server]) -> tuple[Server, int]:
    """`server_factory(("", port))` with a free port, and that port. The factory is asked again where a port is taken."""
    lowest, highest = 1024, 65535
    for port in random.sample(range(lowest, highest + 1), 200):
        try:
            return server_factory(("", port)), port
        except OSError:
            continue
    raise RuntimeError(f"no free port was found among 200 between {lowest} and {highest}.")
