"""By which names this service may be asked for. Pure.

A web page may have its own name resolve to this machine (DNS rebinding). Its requests are then of its own origin, and
only the `Host` header tells them from others. So a name that strangers can register is refused unless it is listed.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

NUM_REMEMBERED = 1024
"""Values of `Host` whose verdict is kept. Clients use a few; more costs memory that a stranger fills."""

MAX_HOST_BYTES = 300
"""A DNS name has 253 characters at most."""

_INTERNAL = (".internal", ".local", ".svc", ".cluster.local", ".home.arpa", ".test")
"""Suffixes that are reserved for private networks."""

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9._-]{0,252}))(?::\d{0,5})?")
"""A name or an IP literal, and a port."""


class HostRule:
    def __init__(self, listed: Sequence[str], listens_on: str, machine: str) -> None:
        """`listed`: names, "*.name" for all below one, or "*" for all. `listens_on`: the host of the listener.
        `machine`: its name.
        """
        self._exact = {name.lower() for name in listed if not name.startswith("*.")}
        self._suffixes = tuple(name[1:].lower() for name in listed if name.startswith("*."))
        self._is_loopback = is_loopback(listens_on)
        self._machine = machine.lower()
        self._remembered = lru_cache(NUM_REMEMBERED)(self._allows)

    def allows(self, host: bytes) -> bool:
        """`host`: the value of the header."""
        return len(host) <= MAX_HOST_BYTES and self._remembered(host)

    def _allows(self, host: bytes) -> bool:
        match = _AUTHORITY.fullmatch(host.decode("latin-1").lower())
        if match is None:
            return False
        name = match[1].removesuffix(".")
        if "*" in self._exact or name in self._exact or name.endswith(self._suffixes):
            return True
        if name == "localhost" or name.endswith(".localhost"):
            return True
        if (address := _address(name)) is not None:
            return is_loopback(address) or not self._is_loopback
        return not self._is_loopback and (name == self._machine or "." not in name or name.endswith(_INTERNAL))


def is_loopback(host: str) -> bool:
    """An IP literal, or a name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(name: str) -> str | None:
    """The IP literal that a name is."""
    try:
        return str(IPv6Address(name[1:-1]) if name.startswith("[") else ip_address(name))
    except ValueError:
        return None
