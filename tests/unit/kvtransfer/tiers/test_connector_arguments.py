from typing import Any

import pytest

from cluster.config.pools import DiskTierConfig, PoolConfig, TiersConfig
from cluster.engine_core.engine_hints import ENGINE_KIND, KEPT_SHARE
from cluster.engine_core.token_pipe import TOKEN_PIPE
from cluster.messages.ids import Pool
from kvtransfer.lease_terms import engine_lease_s
from kvtransfer.tiers.connector_arguments import GIB, GRAMMARS, kv_transfer_arguments
from kvtransfer.transport.topology import Device

NONE = TiersConfig()
DISK = DiskTierConfig(path="/nvme/kv", gib=100)


def arguments(
    tiers: TiersConfig = NONE, *, pool: Pool = Pool.DECODE, device: Device = Device.CUDA, **engine: Any
) -> dict[str, Any]:
    config = PoolConfig(tiers=tiers, engine=engine, kv_lease_s=12)
    return kv_transfer_arguments(pool, config, device, "engine-1", "a-kind", "/a/pipe")


def offloading(tiers: TiersConfig, **others: Any) -> dict[str, Any]:
    _, connector = arguments(tiers, **others)["kv_connector_extra_config"]["connectors"]
    extra: dict[str, Any] = connector["kv_connector_extra_config"]
    return extra


def test_pool_without_tiers_has_nixl_alone() -> None:
    assert arguments() == {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "kvtransfer.connector",
        "kv_role": "kv_consumer",
        "kv_buffer_device": "cuda",
        "kv_load_failure_policy": "recompute",
        "engine_id": "engine-1",
        "kv_connector_extra_config": {
            "kv_lease_duration": engine_lease_s(12),
            GRAMMARS: {"step_ms": 20.0, "burst_ms": 100.0, "compile_timeout_s": 30.0},
            ENGINE_KIND: "a-kind",
            TOKEN_PIPE: "/a/pipe",
            KEPT_SHARE: 0.0,
        },
    }


@pytest.mark.parametrize("tiers", [NONE, TiersConfig(dram_gib=1)], ids=["no tiers", "tiers"])
def test_scheduler_of_the_engine_is_told_what_share_it_may_keep(tiers: TiersConfig) -> None:
    config = PoolConfig(tiers=tiers, kept_share=0.5)
    told = kv_transfer_arguments(Pool.DECODE, config, Device.CUDA, "engine-1", "a-kind", "/a/pipe")
    assert told["kv_connector_extra_config"][KEPT_SHARE] == 0.5


@pytest.mark.parametrize(("pool", "role"), [(Pool.PREFILL, "kv_producer"), (Pool.DECODE, "kv_consumer")])
def test_tiers_stand_behind_the_same_nixl_connector(pool: Pool, role: str) -> None:
    alone, both = arguments(pool=pool), arguments(TiersConfig(dram_gib=1), pool=pool)
    nixl, tiers = both["kv_connector_extra_config"]["connectors"]
    assert alone == nixl | {"engine_id": "engine-1", "kv_load_failure_policy": "recompute"}
    assert (both["kv_connector"], both["kv_role"]) == ("MultiConnector", role)
    assert (both["engine_id"], both["kv_load_failure_policy"]) == ("engine-1", "recompute")
    assert tiers["kv_connector"] == "OffloadingConnector"
    assert both["kv_connector_extra_config"][ENGINE_KIND] == "a-kind"  # the scheduler reads both there
    assert both["kv_connector_extra_config"][TOKEN_PIPE] == "/a/pipe"


def test_dram_tier_has_its_size_and_keeps_answers_too() -> None:
    extra = offloading(TiersConfig(dram_gib=0.5))
    assert (extra["cpu_bytes_to_use"], extra["offload_prompt_only"]) == (GIB // 2, False)
    assert "secondary_tiers" not in extra


@pytest.mark.parametrize(
    ("device", "disk", "spec"),
    [
        (Device.CUDA, None, "CPUOffloadingSpec"),
        (Device.CUDA, DISK, "TieringOffloadingSpec"),
        (Device.CPU, None, "HostTieringSpec"),
        (Device.CPU, DISK, "HostTieringSpec"),
    ],
)
def test_host_memory_is_reached_by_vllm_from_accelerators_and_by_us_from_host_memory(
    device: Device, disk: DiskTierConfig | None, spec: str
) -> None:
    extra = offloading(TiersConfig(dram_gib=1, disk=disk), device=device)
    assert extra["spec_name"] == spec
    assert ("spec_module_path" in extra) == (device is Device.CPU)


def test_disk_tier_has_a_folder_of_its_own_and_a_capacity() -> None:
    (disk,) = offloading(TiersConfig(dram_gib=1, disk=DISK), revision="v2")["secondary_tiers"]
    assert (disk["type"], disk["module_path"]) == ("DiskTier", "kvtransfer.tiers.disk")
    assert (disk["root_dir"], disk["capacity_bytes"], disk["revision"]) == ("/nvme/kv/baton-kv", 100 * GIB, "v2")


def test_engines_share_a_disk_only_when_their_arguments_are_the_same() -> None:
    def digest(**engine: Any) -> str:
        (disk,) = offloading(TiersConfig(dram_gib=1, disk=DISK), **engine)["secondary_tiers"]
        return str(disk["engine_digest"])

    assert digest(model="m", dtype="bfloat16") == digest(dtype="bfloat16", model="m")
    assert digest(model="m", hf_overrides={"rope_theta": 1e6}) != digest(model="m")
