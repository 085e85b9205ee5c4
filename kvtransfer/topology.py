"""Which transport carries KV blocks, by the device that holds them. Pure: returns the environment, sets nothing.

NIXL creates UCX with peer error handling, which rules out sysv and posix shared memory as the only transport. On CPUs
TCP always works, and UCX adds cross-memory attach for bulk data between processes of one machine by itself. On GPUs
UCX is left to choose: cuda_ipc over NVLink in a node, RDMA between nodes, TCP at worst.
"""

from enum import StrEnum


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


def ucx_environment(device: Device) -> dict[str, str]:
    """Environment for every process of a worker, to be set before its engine starts. An operator's own setting wins."""
    rcache = {"UCX_RCACHE_MAX_UNRELEASED": "1024"}  # vLLM's own default, which it cannot set once nixl is imported
    if device is Device.CPU:
        return {"UCX_TLS": "tcp", **rcache}
    return rcache
