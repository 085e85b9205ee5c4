from pathlib import Path

from kvtransfer.transport.node import read_node
from kvtransfer.transport.topology import Device, Node, RdmaPort


def add_port(root: Path, adapter: str, port: int, state: str, link_layer: str) -> None:
    folder = root / "sys/class/infiniband" / adapter / "ports" / str(port)
    folder.mkdir(parents=True)
    (folder / "state").write_text(f"{state}\n")
    (folder / "link_layer").write_text(f"{link_layer}\n")


def test_machine_without_anything_is_a_plain_node(tmp_path: Path) -> None:
    assert read_node(Device.CPU, tmp_path) == Node(device=Device.CPU)


def test_active_ports_are_found_by_the_names_that_ucx_uses(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", 1, "4: ACTIVE", "InfiniBand")
    add_port(tmp_path, "mlx5_0", 2, "1: DOWN", "InfiniBand")
    add_port(tmp_path, "mlx5_1", 1, "4: ACTIVE", "Ethernet")
    ports = (RdmaPort("mlx5_0:1", is_roce=False), RdmaPort("mlx5_1:1", is_roce=True))
    assert read_node(Device.CPU, tmp_path).rdma_ports == ports


def test_port_that_the_kernel_says_nothing_of_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1").mkdir(parents=True)
    assert read_node(Device.CPU, tmp_path).rdma_ports == ()


def test_gpus_of_the_whole_machine_are_counted(tmp_path: Path) -> None:
    for address in ("0000:1b:00.0", "0000:43:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
    assert read_node(Device.CUDA, tmp_path).num_gpus == 2
