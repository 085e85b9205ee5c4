"""What this machine has to move KV blocks with, as Linux reports it. kvtransfer/transport/topology.py decides what to
use.
"""

from pathlib import Path

from kvtransfer.transport.topology import Device, Node, RdmaPort

_ACTIVE = "ACTIVE"
_ETHERNET = "Ethernet"


def read_node(device: Device, root: Path = Path("/")) -> Node:
    """`root` is where /sys and /proc are found."""
    gpus = root / "proc/driver/nvidia/gpus"
    return Node(
        device=device,
        num_gpus=len(list(gpus.iterdir())) if gpus.is_dir() else 0,
        rdma_ports=tuple(_active_ports(root / "sys/class/infiniband")),
    )


def _active_ports(adapters: Path) -> list[RdmaPort]:
    ports = []
    for port in sorted(adapters.glob("*/ports/*")):
        if _ACTIVE in _line(port / "state"):
            ports.append(RdmaPort(f"{port.parts[-3]}:{port.name}", _line(port / "link_layer") == _ETHERNET))
    return ports


def _line(file: Path) -> str:
    """Empty if the kernel does not report it."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
