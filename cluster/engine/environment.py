"""The environment that an engine's process inherits, from the configuration and from what the machine has."""

import errno
import os
import random
import shutil
import socket

from cluster.config.pools import PoolConfig
from cluster.messages.transport import WorkerTransport
from cluster.network.interface import Interface
from kvtransfer.transport import topology
from kvtransfer.transport.node import read_node
from kvtransfer.transport.topology import Device

LOWEST_PORT, LOWEST_EPHEMERAL_PORT = 20_000, 32_768
"""Range of the ports for side channels. It ends where Linux begins to give ports to connections, which could otherwise
take a port first. A narrower range lets more engines try the same port.
"""
PORT_ATTEMPTS = 100
"""Ports that are tried. Fewer fails on a machine with many listeners; more only makes the failure later."""


def transport_of(config: PoolConfig, device: Device, interface: Interface) -> WorkerTransport:
    operator = {name: value for name, value in {**os.environ, **config.env}.items() if name.startswith("UCX_")}
    return topology.choose(read_node(device), config.transport, operator, interface.name)


def environment_of(
    config: PoolConfig, transport: WorkerTransport, device: Device, rank: int, side_channel: tuple[str, int]
) -> dict[str, str]:
    """The environment of this process, which the engine's process inherits. Settings of the operator win, except for
    `side_channel`, the address at which other engines ask this engine for its NIXL metadata. The configuration refuses
    that setting.
    """
    cores = config.cpu_cores[rank % len(config.cpu_cores)] if config.cpu_cores else "nobind"
    defaults = {
        **topology.environment(transport),
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "OMP_NUM_THREADS": str(config.cpu_threads),
        "VLLM_SSM_CONV_STATE_LAYOUT": "DS",  # the only layout of Mamba layers that vLLM's NIXL connector transfers
    }
    if device is Device.CPU and shutil.which(os.environ.get("CXX", "g++")) is None:
        defaults["TORCHDYNAMO_DISABLE"] = (
            "1"  # with the compiler missing, the first request for log-probabilities ends the engine
        )
    host, port = side_channel
    required = {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}
    return {**defaults, **config.env, **required}


def reserve_port(host: str) -> socket.socket:
    """Bind a socket that does not listen. While it is open, a process that looks for a free port does not get this one,
    and a process that knows the port can listen there with SO_REUSEADDR, as ZeroMQ does.

    Raises:
        OSError: no port is free.
    """
    for port in random.sample(range(LOWEST_PORT, LOWEST_EPHEMERAL_PORT), PORT_ATTEMPTS):
        reserved = socket.socket()
        try:
            reserved.bind((host, port))
        except OSError as error:
            reserved.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            reserved.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # not before: two processes could reserve one port
            return reserved
    raise OSError(f"no free port on {host}")
