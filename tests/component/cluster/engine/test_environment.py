"""What an engine inherits."""

from typing import Any

import pytest

from cluster.config.pools import PoolConfig
from cluster.engine.environment import environment_of, transport_of
from cluster.network.interface import Interface
from kvtransfer.transport.topology import Device


def environment(device: Device = Device.CPU, rank: int = 0, **settings: Any) -> dict[str, str]:
    config = PoolConfig(engine={}, **settings)
    return environment_of(
        config, transport_of(config, device, Interface("127.0.0.1", "lo")), device, rank, ("127.0.0.1", 20_001)
    )


@pytest.mark.parametrize(("compiler", "is_disabled"), [("/usr/bin/g++", False), (None, True)])
def test_cpu_engine_compiles_nothing_where_there_is_no_compiler(
    monkeypatch: pytest.MonkeyPatch, compiler: str | None, is_disabled: bool
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: compiler)
    assert ("TORCHDYNAMO_DISABLE" in environment()) is is_disabled
    assert "TORCHDYNAMO_DISABLE" not in environment(Device.CUDA)


def test_what_the_operator_sets_wins() -> None:
    assert environment(env={"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"


def test_workers_of_a_pool_take_turns_with_its_cores() -> None:
    bound = [environment(rank=rank, cpu_cores=["0-3", "4-7"])["VLLM_CPU_OMP_THREADS_BIND"] for rank in range(3)]
    assert bound == ["0-3", "4-7", "0-3"]
