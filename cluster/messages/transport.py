"""How the engine of a worker may move KV blocks, and how fast a link is."""

from enum import StrEnum

import msgspec


class Transport(StrEnum):
    """What can carry KV blocks from one engine to another. The fastest transport is first."""

    NVLINK = "nvlink"
    SHARED_MEMORY = "shared_memory"
    RDMA = "rdma"
    TCP = "tcp"


class EngineVariable(msgspec.Struct, frozen=True, array_like=True):
    """An environment variable of an engine's processes."""

    name: str
    value: str | None
    """The value. None if the variable is not set."""
    why: str
    """Why the variable has this value."""


class WorkerTransport(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker's engine may move KV blocks, chosen when it starts (kvtransfer/transport/topology.py)."""

    transports: tuple[Transport, ...] = ()
    """Transports that the settings allow, the fastest first. Empty if the operator has set UCX_TLS."""
    settings: tuple[EngineVariable, ...] = ()


class LinkSpeed(msgspec.Struct, frozen=True, array_like=True):
    """The speed of a link: a handoff takes `latency_s + num_bytes / bytes_per_s`."""

    latency_s: float
    bytes_per_s: float
