"""Arguments of vLLM's KVTransferConfig: NIXL alone, or NIXL with a DRAM and a disk tier behind the engine's memory.

NIXL comes first, so a request with a handoff takes its blocks from there (kvtransfer/handoff.py keeps vLLM from looking
it up in the tiers). Any other request is looked up in the tiers for what the engine's prefix cache lacks. vLLM moves
blocks between an accelerator and host memory; if the engine's own memory is host memory, kvtransfer/tiers/host.py does.
"""

import hashlib
import json
from typing import Any

import msgspec

from cluster.config.pools import DiskTierConfig, PoolConfig
from cluster.engine_core.engine_hints import ENGINE_KIND, KEPT_SHARE
from cluster.engine_core.token_pipe import TOKEN_PIPE
from cluster.messages.ids import Pool
from kvtransfer.lease_terms import engine_lease_s
from kvtransfer.transport.topology import Device

GIB = 1 << 30

DISK_SUBFOLDER = "baton-kv"
"""Folder below a disk tier's path. Baton writes and deletes nothing outside it."""

GRAMMARS = "baton_grammars"
"""Key of the connector's settings for what grammars of requests may cost the engine. The engine's core has no other
configuration of Baton's.
"""

_KV_ROLES = {Pool.PREFILL: "kv_producer", Pool.DECODE: "kv_consumer"}


def kv_transfer_arguments(
    pool: Pool, config: PoolConfig, device: Device, engine_id: str, kind: str, token_pipe: str
) -> dict[str, Any]:
    """Arguments for one engine of the pool. `kind`: as `EngineShape.kind`. `engine_id` must be new for each process: a
    peer that knows its address must not take a restarted engine for the old one. `token_pipe`: path of the socket that
    the engine's core sends tokens to.
    """
    steps = {ENGINE_KIND: kind, TOKEN_PIPE: token_pipe, KEPT_SHARE: config.kept_share}
    nixl = {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "kvtransfer.connector",
        "kv_role": _KV_ROLES[pool],
        "kv_buffer_device": device.value,
        "kv_connector_extra_config": {
            "kv_lease_duration": engine_lease_s(config.kv_lease_s),
            GRAMMARS: msgspec.to_builtins(config.grammars),
            **steps,
        },
    }
    engine = {"engine_id": engine_id, "kv_load_failure_policy": "recompute"}
    if config.tiers.dram_gib is None:
        return nixl | engine
    both = {"connectors": [nixl, _offloading(config.tiers.dram_gib, config, device)], **steps}
    return engine | {
        "kv_connector": "MultiConnector",
        "kv_role": _KV_ROLES[pool],
        "kv_buffer_device": device.value,
        "kv_connector_extra_config": both,
    }


def _offloading(dram_gib: float, config: PoolConfig, device: Device) -> dict[str, Any]:
    disk = config.tiers.disk
    if device is Device.CPU:
        spec = {"spec_name": "HostTieringSpec", "spec_module_path": "kvtransfer.tiers.host"}
    else:
        spec = {"spec_name": "TieringOffloadingSpec" if disk else "CPUOffloadingSpec"}
    extra: dict[str, Any] = {
        **spec,
        "cpu_bytes_to_use": int(dram_gib * GIB),
        "offload_prompt_only": False,  # the answer is part of the next turn's prompt
    }
    if disk:
        extra["secondary_tiers"] = [_disk_tier(disk, config.engine)]
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def _disk_tier(disk: DiskTierConfig, engine: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "DiskTier",
        "module_path": "kvtransfer.tiers.disk",
        "root_dir": f"{disk.path}/{DISK_SUBFOLDER}",
        "capacity_bytes": int(disk.gib * GIB),
        # vLLM names a file by its tokens, the model's name, the dtype and the layers. Blocks outlive the process that
        # wrote them. Any other engine argument may change their content, so it must change their name, too.
        "engine_digest": hashlib.sha256(json.dumps(engine, sort_keys=True, default=str).encode()).hexdigest(),
        "revision": engine.get("revision"),
    }
