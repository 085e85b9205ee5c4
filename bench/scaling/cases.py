"""The loads and clusters of `python -m bench.scaling`."""

from pathlib import Path

import msgspec

from bench.scaling.autoscalers import BatonAutoscaler, FixedSizes, QueueDepth
from bench.scaling.waves import waved
from cluster.config.scaling import PoolBounds, ScalingConfig
from cluster.simulation.experiment import Cluster
from cluster.simulation.pools.elastic_pools import Sizes, Starting
from cluster.simulation.results.summary import RunSummary, summary
from cluster.simulation.run import simulate_elastic
from cluster.simulation.traffic.slos import OBJECTIVES, slo_of
from cluster.simulation.traffic.traces import read_trace
from cluster.simulation.traffic.workload import Arrival, at_rate
from cluster.slo import SloConfig
from router.pending_placements import PendingPlacements
from router.state import RouterState

SLOS = SloConfig(interactive=OBJECTIVES["mid"], standard=OBJECTIVES["mid"], batch=OBJECTIVES["mid"])
MOST = 16
"""Most workers of a pool. No autoscaler here comes near it with sensible settings."""
PERIOD_S, SWING = 3500.0, 0.7
"""One wave in the hour of each trace, from 0.3 to 1.7 times the recorded rate: a day, 25 times as fast."""
DOWN_AFTER_S = 120.0
"""For all autoscalers: a wave of an hour leaves no time for the usual five minutes."""
STARTING = Starting(start_s=60.0, drain_s=60.0)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    trace: str
    """Name of the file."""
    cluster: Cluster
    fixed: tuple[Sizes, ...]
    """Sizes of pools that keep them."""


CASES = (
    Case(
        name="Azure conversations 2023, Qwen3-32B on 4 L40S",
        trace="AzureLLMInferenceTrace_conv.csv.gz",
        cluster=Cluster(model="qwen3-32b", device="l40s", tensor_parallel=4),
        fixed=((3, 1), (3, 2), (4, 2), (5, 2), (5, 3)),
    ),
    Case(
        name="Mooncake conversations, Qwen3-32B on 2 H100",
        trace="mooncake_conversation_trace.jsonl.gz",
        cluster=Cluster(),
        fixed=((3, 2), (4, 2), (5, 3), (7, 4)),
    ),
)
TARGETS = (0.95, 0.98)
DEPTHS = ((32.0, 256.0), (16.0, 128.0), (8.0, 64.0))
"""Open requests per prefill and per decode worker. The middle one is the best of those that were tried on both traces;
the others are half and twice of it.
"""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    autoscaler: str
    summary: RunSummary
    mean_workers: float
    """Worker hours per hour, from the order to the end of each worker."""
    num_changes: int


def config(target: float) -> ScalingConfig:
    bounds = PoolBounds(max=MOST)
    return ScalingConfig(
        prefill=bounds, decode=bounds, target=target, start_s=STARTING.start_s, down_after_s=DOWN_AFTER_S
    )


def runs_of(case: Case) -> list[tuple[str, BatonAutoscaler | QueueDepth | FixedSizes, Sizes]]:
    """A name, an autoscaler and the first sizes of each run."""
    first = (2, 2)
    return [
        *((f"baton, target {target:g}", BatonAutoscaler(config(target)), first) for target in TARGETS),
        *((f"queue depth {p:g}/{d:g}", QueueDepth(config(0.95), p, d), first) for p, d in DEPTHS),
        *((f"fixed {p}P{d}D", FixedSizes(), (p, d)) for p, d in case.fixed),
    ]


def load(case: Case, traces: Path, num_requests: int | None) -> list[Arrival]:
    rows = read_trace(traces / case.trace)[:num_requests]
    return waved(rows, PERIOD_S, SWING)


def outcome(
    case: Case, rows: list[Arrival], name: str, autoscaler: BatonAutoscaler | QueueDepth | FixedSizes, first: Sizes
) -> Outcome:
    cluster = msgspec.structs.replace(case.cluster, num_workers=sum(first))
    run = simulate_elastic(
        at_rate(rows, 1.0, slo_of(SLOS, cluster.isolated_prefill_s)),
        cluster.split(first[0]),
        lambda: PendingPlacements(RouterState(SLOS)),
        autoscaler,
        STARTING,
    )
    return Outcome(
        autoscaler=name,
        summary=summary(run.records),
        mean_workers=run.worker_s / run.lasted_s,
        num_changes=len(run.changes) - 1,
    )
