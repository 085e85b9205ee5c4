"""What runs of agents beside chats have measured, and their differences over several seeds. Pure."""

from collections.abc import Sequence
from statistics import fmean, stdev

import msgspec

from cluster.messages.ids import Outcome
from cluster.messages.retention import RetentionCounts
from cluster.simulation.results.summary import measured, quantile
from cluster.simulation.traffic.agent_tasks import TENANT
from cluster.simulation.traffic.workload import RequestRecord, SimRequest

CHATS = "chats"
T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t at 97.5 %, by degrees of freedom from 1 on. Beyond its end, 2 is near enough."""


class TenantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Shares are in percent, times in seconds, with waits after refusals."""

    number: int
    hits: float
    """Share of prompt tokens that were found in caches, tiers included."""
    p50: float
    p95: float
    good: float
    refused: int
    """Requests whose last try was refused."""
    retried: int


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    agents: TenantFigures
    chats: TenantFigures
    same_worker: float
    """Share of next steps that generated on the worker of the step before, in percent."""
    idle_p5: float
    """Seconds for which an evicted block had been idle. 0 if none was evicted."""
    idle_p50: float
    counts: RetentionCounts
    """Of all workers."""


def figures_of(
    workload: Sequence[SimRequest],
    records: Sequence[RequestRecord],
    idle_ages_s: Sequence[float],
    counts: Sequence[RetentionCounts],
) -> RunFigures:
    counted = measured(records)
    placed = [
        (records[sim.follows].worker, record.worker)
        for sim, record in zip(workload, records, strict=True)
        if sim.follows is not None and record.worker and records[sim.follows].worker
    ]
    ages = sorted(idle_ages_s) or [0.0]
    fields = RetentionCounts.__struct_fields__
    return RunFigures(
        agents=_tenant([record for record in counted if record.tenant == TENANT]),
        chats=_tenant([record for record in counted if record.tenant == CHATS]),
        same_worker=100 * sum(before == now for before, now in placed) / max(1, len(placed)),
        idle_p5=quantile(ages, 0.05),
        idle_p50=quantile(ages, 0.5),
        counts=RetentionCounts(*(sum(getattr(each, field) for each in counts) for field in fields)),
    )


def _tenant(records: Sequence[RequestRecord]) -> TenantFigures:
    ttfts = sorted(record.ttft_s for record in records if record.ttft_s is not None) or [0.0]
    num_hits, num_tokens = sum(each.num_hit_tokens for each in records), sum(each.num_prompt for each in records)
    return TenantFigures(
        number=len(records),
        hits=100 * num_hits / max(1, num_tokens),
        p50=quantile(ttfts, 0.5),
        p95=quantile(ttfts, 0.95),
        good=100 * sum(record.is_good for record in records) / max(1, len(records)),
        refused=sum(record.outcome is Outcome.REJECTED for record in records),
        retried=sum(record.num_tries > 1 for record in records),
    )


def mean_with_interval(differences: Sequence[float]) -> str:
    """The mean of paired differences, with half of its 95 % interval."""
    if len(differences) < 2:
        return f"{fmean(differences):+.2f}"
    freedom = len(differences) - 1
    t = T_975[freedom - 1] if freedom <= len(T_975) else 2.0
    return f"{fmean(differences):+.2f} ± {t * stdev(differences) / len(differences) ** 0.5:.2f}"
