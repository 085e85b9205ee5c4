"""Where the processes listen for each other: on the interface that the configuration names, or on loopback."""

import socket
from typing import Any

import psutil
import pytest

from cluster.config.application import AppConfig, parse
from cluster.messages.ids import Address
from cluster.network.interface import own_interface
from cluster.rpc.connection import ConnectionLost
from cluster.serve_context import SchedulerOutOfReach, require_reachable
from kvtransfer.transport.topology import Device, Node, RdmaPort, choose, environment

NODE_IP = "192.0.2.77"


def a_config(**args: Any) -> AppConfig:
    return parse({"model": "org/model"} | args)


@pytest.mark.parametrize(
    ("ingress", "network", "host"),
    [
        ({}, {}, "127.0.0.1"),
        ({"host": "127.0.0.2"}, {}, "127.0.0.1"),
        ({"host": "localhost"}, {}, "127.0.0.1"),
        ({"host": "0.0.0.0"}, {}, None),
        ({"host": "192.0.2.9"}, {}, None),
        ({}, {"host": "eth1"}, "eth1"),
        ({"host": "0.0.0.0"}, {"host": "127.0.0.1"}, "127.0.0.1"),
    ],
)
def test_processes_listen_on_loopback_where_the_ingress_does_unless_the_operator_says(
    ingress: dict[str, str], network: dict[str, str], host: str | None
) -> None:
    assert a_config(ingress=ingress, network=network).internal_host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "", "eth1:2", "a name", "an-interface-name", 1])
def test_host_at_which_no_peer_can_connect_is_refused_with_its_key(host: object) -> None:
    with pytest.raises(ValueError, match=r"host"):
        a_config(network={"host": host})


def test_interface_is_resolved_on_this_node() -> None:
    (loopback,) = (name for name, addresses in psutil.net_if_addrs().items() if _has(addresses, "127.0.0.1"))
    for host in (loopback, "127.0.0.1", "127.0.0.2"):
        interface = own_interface(host, NODE_IP)
        assert interface.name == loopback
        with socket.socket() as listener:
            listener.bind((interface.host, 0))


def test_node_that_has_not_what_is_configured_says_which_key_it_is() -> None:
    for host in (NODE_IP, "eth77"):
        with pytest.raises(
            ValueError, match=rf"network\.host: this node has no address or interface {host}; it has .*lo"
        ):
            own_interface(host, NODE_IP)


def test_rays_address_of_the_node_is_taken_even_where_no_interface_has_it() -> None:
    interface = own_interface(None, NODE_IP)
    assert (interface.host, interface.name) == (NODE_IP, None)


def test_worker_on_another_node_than_a_loopback_scheduler_is_told_the_key() -> None:
    loopback, reachable = (Address(host, 1, "process") for host in ("127.0.0.1", NODE_IP))
    with pytest.raises(SchedulerOutOfReach, match=r"network\.host"):
        require_reachable(loopback, "one", "other")
    assert issubclass(SchedulerOutOfReach, ConnectionLost)
    require_reachable(loopback, "one", "one")
    require_reachable(reachable, "one", "other")


def test_ucx_listens_on_the_same_interface_and_keeps_its_rdma_ports() -> None:
    node = Node(device=Device.CPU, rdma_ports=(RdmaPort("mlx5_0:1", False),))
    assert environment(choose(Node(device=Device.CPU), None, {}, "lo"))["UCX_NET_DEVICES"] == "lo"
    assert environment(choose(node, None, {}, "eth1"))["UCX_NET_DEVICES"] == "eth1,mlx5_0:1"
    assert "UCX_NET_DEVICES" not in environment(choose(node, None, {}, None))
    assert environment(choose(node, None, {"UCX_NET_DEVICES": "eth2"}, "eth1"))["UCX_NET_DEVICES"] == "eth2"


def _has(addresses: list[Any], address: str) -> bool:
    return any(known.address == address for known in addresses)
