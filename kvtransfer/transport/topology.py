"""Which transport carries KV blocks, by what the node has and what the operator asks for. The caller applies the
settings. Pure.

NIXL creates UCX with peer error handling, so that a dead peer fails a pull instead of hanging it. That rules out sysv
and posix shared memory; cross-memory attach (CMA) is the shared memory that is left. A setting of the operator, in the
pool's `env` or on the node, is never changed. docs/benchmarks.md compares the choices
on CPUs; the choices for GPUs and RDMA have not been measured.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from cluster.messages.transport import EngineVariable, Transport, WorkerTransport
from cluster.network.keepalive import DEAD_PEER_S, IDLE_S, PROBE_INTERVAL_S, PROBES


class Device(StrEnum):
    """What holds the KV blocks."""

    CPU = "cpu"
    CUDA = "cuda"


class RdmaPort(msgspec.Struct, frozen=True):
    """An active port of an InfiniBand or RoCE adapter."""

    name: str
    """As UCX names it, e.g. "mlx5_0:1"."""
    is_roce: bool


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's machine has (kvtransfer/transport/node.py)."""

    device: Device
    num_gpus: int = 0
    rdma_ports: tuple[RdmaPort, ...] = ()


_ONLY = {
    (Device.CPU, Transport.TCP): "tcp",
    (Device.CPU, Transport.SHARED_MEMORY): "tcp,cma",
    (Device.CPU, Transport.RDMA): "rc",
    (Device.CUDA, Transport.TCP): "tcp,cuda_copy",
    (Device.CUDA, Transport.NVLINK): "tcp,cuda",
    (Device.CUDA, Transport.RDMA): "rc,cuda_copy",
}
"""UCX_TLS if the operator asks for one transport. CMA and NVLink carry data alone, so TCP connects and notifies. GPU
memory always needs cuda_copy, which `cuda` includes.
"""

_PEER_LOSS = (
    EngineVariable(
        "UCX_TCP_KEEPIDLE", f"{IDLE_S}s", f"an idle connection is asked for a sign of life after {IDLE_S} s"
    ),
    EngineVariable("UCX_TCP_KEEPINTVL", f"{PROBE_INTERVAL_S}s", f"and every {PROBE_INTERVAL_S} s from then on"),
    EngineVariable(
        "UCX_TCP_KEEPCNT",
        f"{PROBES}",
        f"and is lost after {PROBES} silent ones: {DEAD_PEER_S} s in all, UCX's own take 28",
    ),
    EngineVariable(
        "UCX_TCP_USER_TIMEOUT", f"{DEAD_PEER_S}s", "the same for data without an acknowledgement: Linux takes 15 min"
    ),
    EngineVariable(
        "UCX_KEEPALIVE_INTERVAL", f"{IDLE_S}s", "the same for transports other than TCP: UCX's own round takes 20 s"
    ),
)
_WITHIN_A_NODE = (Transport.NVLINK, Transport.SHARED_MEMORY)

_WHY = {
    Transport.NVLINK: "cuda_ipc copies from GPU to GPU, over NVLink where there is one, else over PCIe",
    Transport.SHARED_MEMORY: "CMA copies between the processes, TCP notifies",
    Transport.RDMA: "the adapters read the blocks without the other side's CPU",
    Transport.TCP: "nothing faster reaches both",
}

_RCACHE = EngineVariable(
    "UCX_RCACHE_MAX_UNRELEASED", "1024", "vLLM's default, which it cannot set once nixl is imported"
)


def choose(
    node: Node, only: Transport | None, operator: Mapping[str, str], interface: str | None = None
) -> WorkerTransport:
    """The settings of every process of a worker, which must be made before its engine starts. `only`: the one transport
    that the operator asks for, or None to leave the choice to Baton. `operator`: the UCX environment that is already
    set. `interface`: the network interface of the cluster's processes, or None to leave the choice to UCX.

    Raises:
        ValueError: the node does not have the transport that the operator asks for.
    """
    tls = _fastest(node) if only is None else _only(node, only)
    transports = tuple(t for t in Transport if _has(node, t)) if only is None else (only,)
    if "UCX_TLS" in operator:
        transports = ()
    ours = (tls, *_net_devices(node, interface), *_PEER_LOSS, _RCACHE)
    theirs = tuple(EngineVariable(name, value, "set by the operator") for name, value in sorted(operator.items()))
    settings = tuple(setting for setting in ours if setting.name not in operator)
    return WorkerTransport(transports=transports, settings=theirs + settings)


def environment(transport: WorkerTransport) -> dict[str, str]:
    return {setting.name: setting.value for setting in transport.settings if setting.value is not None}


def between(prefill: WorkerTransport, decode: WorkerTransport, *, same_node: bool) -> tuple[Transport | None, str]:
    """The fastest transport that both workers allow, and why. None if UCX decides by the operator's settings, or if the
    workers have no transport in common. UCX does not report which transport it took.
    """
    if not prefill.transports or not decode.transports:
        return None, "UCX_TLS is set by the operator"
    common = [t for t in prefill.transports if t in decode.transports]
    usable = [t for t in common if same_node or t not in _WITHIN_A_NODE]
    if not usable:
        return None, "the two workers allow no transport in common"
    where = "one node" if same_node else "two nodes"
    return usable[0], f"{where}: {_WHY[usable[0]]}"


def _has(node: Node, transport: Transport) -> bool:
    match transport:
        case Transport.NVLINK:
            return node.device is Device.CUDA and node.num_gpus > 1
        case Transport.SHARED_MEMORY:
            return node.device is Device.CPU
        case Transport.RDMA:
            return bool(node.rdma_ports)
        case Transport.TCP:
            return True


def _fastest(node: Node) -> EngineVariable:
    if node.device is Device.CUDA:
        return EngineVariable("UCX_TLS", None, f"UCX chooses from what it finds: {_inventory(node)}")
    if node.rdma_ports:
        return EngineVariable("UCX_TLS", "rc,tcp,cma", f"{_inventory(node)}; CMA within the node")
    return EngineVariable("UCX_TLS", "tcp,cma", f"{_inventory(node)}: CMA within the node, TCP to other nodes")


def _only(node: Node, transport: Transport) -> EngineVariable:
    if not _has(node, transport):
        raise ValueError(f"transport {transport} is asked for, but this node has {_inventory(node)}")
    return EngineVariable("UCX_TLS", _ONLY[node.device, transport], f"the pool's config asks for {transport}")


def _net_devices(node: Node, interface: str | None) -> tuple[EngineVariable, ...]:
    """UCX listens on each interface that it may use, so it gets no more than it needs."""
    if interface is None:
        return ()
    devices = ",".join((interface, *(port.name for port in node.rdma_ports)))
    return (
        EngineVariable("UCX_NET_DEVICES", devices, "TCP on the interface of network.host, RDMA on every active port"),
    )


def _inventory(node: Node) -> str:
    gpus = [f"{node.num_gpus} GPUs" if node.num_gpus > 1 else "one GPU"] if node.device is Device.CUDA else ["no GPU"]
    roce = [port.name for port in node.rdma_ports if port.is_roce]
    infiniband = [port.name for port in node.rdma_ports if not port.is_roce]
    rdma = [f"RoCE on {', '.join(roce)}"] * bool(roce) + [f"InfiniBand on {', '.join(infiniband)}"] * bool(infiniband)
    return ", ".join([*gpus, *(rdma or ["no RDMA"])])
