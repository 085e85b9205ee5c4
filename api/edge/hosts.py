"""The host names under which the ingress serves requests.

The owner of a web page may make the page's own host name resolve to this machine (DNS rebinding). A browser then treats
requests of the page to this machine as requests of the same origin, and only the `Host` header shows the foreign name.
So a name that anyone can register is refused unless the operator has listed it.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

NUM_REMEMBERED = 1024
"""Values of `Host` whose verdict is cached. Clients use a few values. Lower checks values again; higher takes memory
that any sender of requests can fill.
"""

MAX_HOST_BYTES = 300
"""Bytes of `Host` above which the header is refused. A DNS name has at most 253 characters, and a port may follow it.
Lower refuses long names; higher searches longer texts.
"""

_INTERNAL = (".internal", ".local", ".svc", ".cluster.local", ".home.arpa", ".test")
"""Suffixes that are reserved for private networks."""

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9._-]{0,252}))(?::\d{0,5})?")
"""The value of `Host`: a name or an IP literal, and possibly a port."""


class HostRule:
    def __init__(self, listed: Sequence[str], listens_on: str, machine: str) -> None:
        """`listed` has names, "*.name" for all names below a name, or "*" for all names. `listens_on` is the host of
        the listener, and `machine` the host name of this machine.
        """
        self._exact = {name.lower() for name in listed if not name.startswith("*.")}
        self._suffixes = tuple(name[1:].lower() for name in listed if name.startswith("*."))
        self._is_loopback = is_loopback(listens_on)
        self._machine = machine.lower()
        self._remembered = lru_cache(NUM_REMEMBERED)(self._allows)

    def allows(self, host: bytes) -> bool:
        """Whether requests with this value of `Host` are served."""
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
    """Whether a host is a loopback address or the name localhost."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(name: str) -> str | None:
    """The IP address of an IP literal. None for a name."""
    try:
        return str(IPv6Address(name[1:-1]) if name.startswith("[") else ip_address(name))
    except ValueError:
        return None
