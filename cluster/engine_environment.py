"""The environment that an engine's process inherits, from the configuration and from what the machine has."""

import os
import random
import shutil
import socket
from contextlib import suppress

from cluster.config import PoolConfig
from cluster.reports import WorkerTransport
from kvtransfer import topology
from kvtransfer.node import read_node
from kvtransfer.topology import Device

LOWEST_PORT, LOWEST_EPHEMERAL_PORT, PORT_ATTEMPTS = 20_000, 32_768, 100


def transport_of(config: PoolConfig, device: Device) -> WorkerTransport:
    operator = {name: value for name, value in {**os.environ, **config.env}.items() if name.startswith("UCX_")}
    return topology.choose(read_node(device), config.transport, operator)


def environment_of(
    config: PoolConfig, transport: WorkerTransport, device: Device, rank: int, node_ip: str
) -> dict[str, str]:
    """For this process and the engine's, which inherits it. What the operator has set wins."""
    cores = config.cpu_cores[rank % len(config.cpu_cores)] if config.cpu_cores else "nobind"
    defaults = {
        **topology.environment(transport),
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "OMP_NUM_THREADS": str(config.cpu_threads),
    }
    if device is Device.CPU and shutil.which(os.environ.get("CXX", "g++")) is None:
        defaults["TORCHDYNAMO_DISABLE"] = "1"  # the first request for log-probabilities would end the engine
    # An address in use would hang the engine's start: the listener thread dies without a word.
    required = {"VLLM_NIXL_SIDE_CHANNEL_HOST": node_ip, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(_free_port(node_ip))}
    return {**defaults, **config.env, **required}


def _free_port(host: str) -> int:
    """Below the range from which the system gives ports to whoever asks for any: nobody takes it by accident before the
    engine does.
    """
    for port in random.sample(range(LOWEST_PORT, LOWEST_EPHEMERAL_PORT), PORT_ATTEMPTS):
        with socket.socket() as listener, suppress(OSError):
            listener.bind((host, port))
            return port
    raise OSError(f"no free port on {host}")
