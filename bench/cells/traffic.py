"""The traffic of bench/cells/compare.py, at rates that load 32 workers nearly in full."""

from collections.abc import Callable, Sequence
from types import MappingProxyType

import msgspec

from bench.data.shared_data import shared_file
from cluster.simulation.traffic.mixes import Mix, Spread, Stream, generate, log_normal
from cluster.simulation.traffic.traces import read_trace
from cluster.simulation.traffic.workload import Arrival

CONVERSATION = "traces/mooncake_conversation_trace.jsonl.gz"
COPIES = 6
"""Copies of the trace that run at the same time. Three requests a second are recorded. More load the workers more."""
APART_S = 7.0
"""Seconds between the starts of two copies. Fewer has their bursts come together; more begins with fewer copies."""
AGENTS = Mix(
    what="agents with two system prompts, whose prompts grow by what their tools return",
    rate_per_s=32.0,
    streams=(
        Stream(
            prompts=log_normal(3_000, 12_000, 32_768),
            outputs=log_normal(300, 800, 2_000),
            further_turns=Spread(((0, 0), (0.3, 2), (0.6, 6), (0.9, 15), (1, 30))),
            think_s=log_normal(15, 45, 120),
            new_tokens=log_normal(600, 2_500, 8_000),
            num_system_prompts=2,
            system_tokens=4_096,
            max_prompt=65_536,
        ),
    ),
)


class FleetTraffic(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    rows: Callable[[int], list[Arrival]]
    """Makes a number of requests, at their own rate."""


def together(rows: Sequence[Arrival], copies: int) -> list[Arrival]:
    """Copies of the rows at the same time, each a little later. Conversations of two copies share only the first block
    of their prompts, which is that of the application.
    """
    moved = [_copied(row, number) for number in range(copies) for row in rows]
    return sorted(moved, key=lambda row: row.arrival_s)


def _copied(row: Arrival, number: int) -> Arrival:
    copy = row.moved(number * APART_S, salt=number)
    return msgspec.structs.replace(copy, block_hashes=row.block_hashes[:1] + copy.block_hashes[1:])


def _conversations(number: int) -> list[Arrival]:
    return together(read_trace(shared_file(CONVERSATION), 0, -(-number // COPIES)), COPIES)


TRAFFIC = MappingProxyType(
    {
        "conversation": FleetTraffic(
            what=f"{COPIES} copies of Mooncake's conversation trace at once", rows=_conversations
        ),
        "agents": FleetTraffic(what=AGENTS.what, rows=lambda number: generate(AGENTS, number)),
    }
)
