"""The network interface of this node that Baton's processes use."""

import socket

import msgspec
import psutil

from cluster.config.network import LOOPBACK, is_loopback


class Interface(msgspec.Struct, frozen=True):
    """A network interface of this node."""

    host: str
    """IPv4 address to listen on."""
    name: str | None
    """Linux's name of the interface, e.g. "eth1". None if no interface of this node has the address."""


def own_interface(host: str | None, node_ip: str) -> Interface:
    """The interface for `host`, the value of `network.host`. None stands for `node_ip`, the address by which Ray knows
    this node.

    Raises ValueError with the name of the key if this node does not have the address or the interface.
    """
    addresses = {
        name: [address.address for address in of_interface if address.family == socket.AF_INET]
        for name, of_interface in psutil.net_if_addrs().items()
    }
    if host in addresses:
        if not addresses[host]:
            raise ValueError(f"network.host: the interface {host} of this node has no IPv4 address")
        return Interface(addresses[host][0], host)
    address = node_ip if host is None else host
    name = next((name for name, known in addresses.items() if address in known), None)
    if name is None and is_loopback(address):
        name = next((name for name, known in addresses.items() if LOOPBACK in known), None)
    elif name is None and host is not None:
        raise ValueError(f"network.host: this node has no address or interface {host}; it has {_listed(addresses)}")
    return Interface(address, name)


def _listed(addresses: dict[str, list[str]]) -> str:
    return ", ".join(f"{name} ({', '.join(known)})" for name, known in sorted(addresses.items()) if known)
