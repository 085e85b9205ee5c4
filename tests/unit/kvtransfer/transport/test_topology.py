from typing import Any

import pytest

from cluster.messages.transport import Transport, WorkerTransport
from kvtransfer.transport.topology import Device, Node, RdmaPort, between, choose, environment

INFINIBAND, ROCE = RdmaPort("mlx5_0:1", is_roce=False), RdmaPort("mlx5_1:1", is_roce=True)
CPU_NODE = Node(device=Device.CPU)
RDMA_CPU_NODE = Node(device=Device.CPU, rdma_ports=(INFINIBAND,))
GPU_NODE = Node(device=Device.CUDA, num_gpus=1)
GPU_BOX = Node(device=Device.CUDA, num_gpus=8)
RDMA_GPU_BOX = Node(device=Device.CUDA, num_gpus=8, rdma_ports=(INFINIBAND, ROCE))
NODES = [CPU_NODE, RDMA_CPU_NODE, GPU_NODE, GPU_BOX, RDMA_GPU_BOX]


def tls(node: Node, only: Transport | None = None, **operator: str) -> str | None:
    return environment(choose(node, only, operator)).get("UCX_TLS")


def why_tls(node: Node, only: Transport | None = None) -> str:
    (setting,) = [s for s in choose(node, only, {}).settings if s.name == "UCX_TLS"]
    return setting.why


@pytest.mark.parametrize(
    ("node", "value", "transports"),
    [
        (CPU_NODE, "tcp,cma", (Transport.SHARED_MEMORY, Transport.TCP)),
        (RDMA_CPU_NODE, "rc,tcp,cma", (Transport.SHARED_MEMORY, Transport.RDMA, Transport.TCP)),
        (GPU_NODE, None, (Transport.TCP,)),
        (GPU_BOX, None, (Transport.NVLINK, Transport.TCP)),
        (RDMA_GPU_BOX, None, (Transport.NVLINK, Transport.RDMA, Transport.TCP)),
    ],
)
def test_worker_gets_everything_that_its_node_has(node: Node, value: str | None, transports: tuple[Any, ...]) -> None:
    assert (tls(node), choose(node, None, {}).transports) == (value, transports)


@pytest.mark.parametrize(
    ("node", "only", "value"),
    [
        (RDMA_CPU_NODE, Transport.TCP, "tcp"),
        (RDMA_CPU_NODE, Transport.SHARED_MEMORY, "tcp,cma"),
        (RDMA_CPU_NODE, Transport.RDMA, "rc"),
        (RDMA_GPU_BOX, Transport.TCP, "tcp,cuda_copy"),
        (RDMA_GPU_BOX, Transport.NVLINK, "tcp,cuda"),
        (RDMA_GPU_BOX, Transport.RDMA, "rc,cuda_copy"),
    ],
)
def test_transport_that_is_asked_for_is_the_only_one(node: Node, only: Transport, value: str) -> None:
    assert (tls(node, only), choose(node, only, {}).transports) == (value, (only,))
    assert why_tls(node, only) == f"the pool's config asks for {only}"


@pytest.mark.parametrize(
    ("node", "only", "has"),
    [
        (CPU_NODE, Transport.RDMA, "no GPU, no RDMA"),
        (CPU_NODE, Transport.NVLINK, "no GPU"),
        (GPU_NODE, Transport.NVLINK, "one GPU, no RDMA"),
        (GPU_BOX, Transport.SHARED_MEMORY, "8 GPUs, no RDMA"),
        (GPU_BOX, Transport.RDMA, "8 GPUs, no RDMA"),
    ],
)
def test_transport_that_the_node_does_not_have_is_refused(node: Node, only: Transport, has: str) -> None:
    with pytest.raises(ValueError, match=f"transport {only} is asked for, but this node has {has}"):
        choose(node, only, {})


def test_gpu_memory_is_reachable_by_whatever_is_asked_for() -> None:
    for only in (Transport.TCP, Transport.NVLINK, Transport.RDMA):
        assert set((tls(RDMA_GPU_BOX, only) or "").split(",")) & {"cuda", "cuda_copy"}


def test_choice_names_what_it_found() -> None:
    assert why_tls(RDMA_GPU_BOX) == ("UCX chooses from what it finds: 8 GPUs, RoCE on mlx5_1:1, InfiniBand on mlx5_0:1")
    assert why_tls(CPU_NODE) == "no GPU, no RDMA: CMA within the node, TCP to other nodes"


@pytest.mark.parametrize("node", NODES)
def test_every_node_notices_a_dead_peer_and_bounds_the_registration_cache(node: Node) -> None:
    settings = environment(choose(node, None, {}))
    idle, interval, count = (settings[f"UCX_TCP_KEEP{name}"] for name in ("IDLE", "INTVL", "CNT"))
    assert int(idle.removesuffix("s")) + int(count) * int(interval.removesuffix("s")) == 10
    assert settings["UCX_TCP_USER_TIMEOUT"] == "10s"
    assert settings["UCX_RCACHE_MAX_UNRELEASED"] == "1024"


def test_what_the_operator_has_set_is_kept_and_shown() -> None:
    transport = choose(CPU_NODE, None, {"UCX_TCP_KEEPIDLE": "60s", "UCX_NET_DEVICES": "eth1"})
    settings = {s.name: s for s in transport.settings}
    assert (settings["UCX_TCP_KEEPIDLE"].value, settings["UCX_NET_DEVICES"].value) == ("60s", "eth1")
    assert settings["UCX_NET_DEVICES"].why == "set by the operator"
    assert len(settings) == len(transport.settings)


def test_operators_ucx_tls_leaves_the_transport_open() -> None:
    transport = choose(CPU_NODE, None, {"UCX_TLS": "all"})
    assert (tls(CPU_NODE, None, UCX_TLS="all"), transport.transports) == ("all", ())
    ours = choose(CPU_NODE, None, {})
    assert between(ours, transport, same_node=True) == (None, "UCX_TLS is set by the operator")


def having(*transports: Transport) -> WorkerTransport:
    return WorkerTransport(transports=transports)


@pytest.mark.parametrize(
    ("node", "same_node", "expected"),
    [
        (CPU_NODE, True, Transport.SHARED_MEMORY),
        (CPU_NODE, False, Transport.TCP),
        (RDMA_CPU_NODE, False, Transport.RDMA),
        (GPU_BOX, True, Transport.NVLINK),
        (GPU_BOX, False, Transport.TCP),
        (RDMA_GPU_BOX, True, Transport.NVLINK),
        (RDMA_GPU_BOX, False, Transport.RDMA),
    ],
)
def test_link_takes_the_fastest_that_reaches(node: Node, same_node: bool, expected: Transport) -> None:
    worker = choose(node, None, {})
    transport, why = between(worker, worker, same_node=same_node)
    assert transport is expected
    assert why.startswith("one node: " if same_node else "two nodes: ")


def test_link_takes_only_what_both_workers_allow() -> None:
    both = having(Transport.NVLINK, Transport.RDMA, Transport.TCP)
    assert between(both, having(Transport.TCP), same_node=True)[0] is Transport.TCP
    nothing = (None, "the two workers allow no transport in common")
    assert between(having(Transport.RDMA), having(Transport.TCP), same_node=True) == nothing
    assert between(having(Transport.NVLINK), both, same_node=False) == nothing
