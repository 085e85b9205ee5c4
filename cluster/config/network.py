"""The config section `network:`."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import PurePath

import msgspec

LOOPBACK = "127.0.0.1"
ALL_INTERFACES = "0.0.0.0"

_INTERFACE = re.compile(r"[^\s/:]{1,15}")
"""Names of network interfaces as Linux allows them."""


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files in PEM, at the same paths on every node. New contents are used without a restart."""

    certificate: str
    """The node's certificate, followed by those between it and the authority, if there are any. It must do for both
    sides of a connection.
    """
    key: str
    """The private key of the certificate, not encrypted."""
    authority: str
    """The authority's certificate, or several of them while one replaces the other. Every certificate that it has
    signed is accepted, so it must sign for this cluster only.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            path = getattr(self, name)
            if not PurePath(path).is_absolute():
                raise ValueError(f"{name}: {path!r} is not an absolute path")


class NetworkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the processes of the application listen for each other. docs/network.md names every socket."""

    host: str | None = None
    """An IPv4 address of the node, or the name of a network interface, e.g. "eth1", which each node resolves for
    itself. If it is missing, the processes listen on 127.0.0.1 where `ingress.host` is a loopback address, and else on
    the address by which Ray knows the node. An interface that more machines reach lets more strangers try to connect;
    with a loopback address, all workers must be on one node.
    """
    tls: TlsConfig | None = None
    """Encrypts the connections between Baton's processes, on which both sides then need a certificate. If it is
    missing, these connections are in clear. docs/network.md says what it does not encrypt.
    """

    def __post_init__(self) -> None:
        if self.host is None:
            return
        address = _address(self.host)
        if isinstance(address, IPv6Address) or (address is None and not _INTERFACE.fullmatch(self.host)):
            raise ValueError(f"host: {self.host!r} is neither an IPv4 address nor the name of a network interface")
        if address is not None and address.is_unspecified:
            raise ValueError(f"host: {self.host!r} is not an address at which other processes can connect")


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
