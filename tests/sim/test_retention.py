"""Conversations that are likely to go on soon, while others come, on simulated engines: whose KV blocks are left."""

import msgspec
import pytest

from cluster.messages.placement import Slo
from cluster.simulation.baselines import BASELINES
from cluster.simulation.experiment import Cluster
from cluster.simulation.pools.pool_setting import ClusterSetting
from cluster.simulation.run import simulate
from cluster.simulation.traffic.slos import parse_slos
from cluster.simulation.traffic.workload import SimRequest
from router.pending_placements import PendingPlacements
from router.state import RouterState

BLOCK, NUM_BLOCKS, KV_TOKENS = 100, 40, 16_000
"""Tokens of a block, blocks of a prompt, and the engine's memory: four prompts."""
SLOS = parse_slos("mid")


def asked(name: str, at: float = 0.0, num_blocks: int = NUM_BLOCKS) -> SimRequest:
    return SimRequest(
        arrival_s=at,
        num_prompt=num_blocks * BLOCK + 1,
        num_output=20,
        slo=Slo(10.0, 1.0),
        block_hashes=[f"{name}{i:6}".rjust(8).encode() for i in range(num_blocks)],
    )


def engines(kept_share: float) -> ClusterSetting:
    setting = Cluster(num_workers=1).split(0)
    engine = msgspec.structs.replace(
        setting.decode.engine, block_size=BLOCK, kv_capacity_tokens=KV_TOKENS, kept_share=kept_share
    )
    return msgspec.structs.replace(setting, decode=msgspec.structs.replace(setting.decode, engine=engine))


def hits_of_next_step(kept_share: float, *, calls_tool: bool = True, burst_at: float = 1.0) -> int:
    """Tokens that the next step of a conversation finds. Six other prompts come between."""
    workload = [
        msgspec.structs.replace(asked("a"), calls_tool=calls_tool),
        msgspec.structs.replace(asked("a", num_blocks=NUM_BLOCKS + 2), follows=0, gap_s=burst_at + 7.0),
        *(asked(name, at=burst_at + i) for i, name in enumerate("bcdefg")),
    ]
    records = simulate(
        workload,
        engines(kept_share),
        lambda: PendingPlacements(RouterState(SLOS, BASELINES["goodput"].make(0))),
    )
    return records[1].num_hit_tokens


def test_burst_evicts_a_conversation_that_waits_for_tools() -> None:
    assert hits_of_next_step(0.0) == 0


def test_burst_does_not_evict_it_with_retention() -> None:
    assert hits_of_next_step(0.5) == NUM_BLOCKS * BLOCK


@pytest.mark.parametrize(("calls_tool", "burst_at"), [(False, 1.0), (True, 30.0)])
def test_conversation_that_does_not_wait_or_is_late_is_evicted(calls_tool: bool, burst_at: float) -> None:
    assert hits_of_next_step(0.5, calls_tool=calls_tool, burst_at=burst_at) == 0
