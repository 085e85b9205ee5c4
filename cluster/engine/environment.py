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

LOWEST_PORT, LOWEST_EPHEMERAL_PORT, PORT_ATTEMPTS = 20_000, 32_768, 100


def transport_of(config: PoolConfig, device: Device, interface: Interface) -> WorkerTransport:
    operator = {name: value for name, value in {**os.environ, **config.env}.items() if name.startswith("UCX_")}
    return topology.choose(read_node(device), config.transport, operator, interface.name)


def environment_of(
    config: PoolConfig, transport: WorkerTransport, device: Device, rank: int, side_channel: tuple[str, int]
) -> dict[str, str]:
    """For this process and the engine's, which inherits it. What the operator has set wins, but for `side_channel`, the
    address at which other engines ask this one for its NIXL metadata: the configuration refuses it.
    """
    cores = config.cpu_cores[rank % len(config.cpu_cores)] if config.cpu_cores else "nobind"
    defaults = {
        **topology.environment(transport),
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "OMP_NUM_THREADS": str(config.cpu_threads),
    }
    if device is Device.CPU and shutil.which(os.environ.get("CXX", "g++")) is None:
        defaults["TORCHDYNAMO_DISABLE"] = "1"  # the first request for log-probabilities would end the engine
    host, port = side_channel
    required = {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}
    return {**defaults, **config.env, **required}


def reserve_port(host: str) -> socket.socket:
    """A socket that is bound and does not listen. While it is open, nobody who looks for a free port gets this one, and
    whoever is told of it can listen there with SO_REUSEADDR, as ZeroMQ does. It is below the range from which the
    system gives ports to connections.

    Raises:
        OSError: none is free.
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
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: two could reserve it
            return reserved
    raise OSError(f"no free port on {host}")
