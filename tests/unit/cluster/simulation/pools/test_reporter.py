"""Simulated decode workers prove and measure links as the Scheduler says, while the cluster has requests."""

import asyncio
from collections import Counter

from cluster.messages.ids import IngressId, Outcome, Path, Pool, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection, Slo
from cluster.messages.reports import ReportReply, WorkerReport
from cluster.messages.scheduler_events import SchedulerEvent
from cluster.messages.transport import LinkSpeed
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.pools.pool_setting import ClusterSetting, Fault, Linking, PoolSetting, Reporting
from cluster.simulation.run import simulate
from cluster.simulation.traffic.workload import RequestRecord, SimRequest
from router.links.link_plan import PROBES_PER_PREFILL
from router.pending_placements import PendingPlacements
from router.state import RouterState
from tests.unit.cluster.simulation.linear_steps import LinearSteps

SPEED = LinkSpeed(latency_s=0.002, bytes_per_s=1e8)
JOINS_AT, NEW = 20.0, WorkerId("p0.1")


class WatchedScheduler:
    """Production's Scheduler, with a look at what passes it."""

    def __init__(self) -> None:
        self.scheduler = PendingPlacements(RouterState())
        self.placed: list[tuple[float, Placement]] = []
        self.reports: dict[WorkerId, WorkerReport] = {}
        self.most_probes: Counter[WorkerId] = Counter()
        """Probes at the same time, at most, of each prefill worker."""
        self.measured: set[tuple[WorkerId, WorkerId]] = set()

    async def place(self, request: PlacementRequest, ingress: IngressId | None = None) -> Placement | Rejection:
        answer = await self.scheduler.place(request, ingress)
        if isinstance(answer, Placement):
            self.placed.append((asyncio.get_running_loop().time(), answer))
        return answer

    def tell(self, event: SchedulerEvent) -> None:
        self.scheduler.tell(event)

    def report(self, report: WorkerReport) -> ReportReply:
        self.reports[report.worker] = report
        self.most_probes |= Counter(known.probing for known in self.reports.values() if known.probing is not None)
        reply = self.scheduler.report(report)
        if reply.link is not None and reply.link.measures:
            self.measured.add((reply.link.prefill, report.worker))
        return reply

    def kv_events(self, events: KvEvents) -> bool:
        return self.scheduler.kv_events(events)


def a_pool(number: int, max_step_tokens: int) -> PoolSetting:
    engine = EngineSetting(kv_capacity_tokens=100_000, max_step_tokens=max_step_tokens, block_size=100)
    return PoolSetting(number=number, engine=engine, model=LinearSteps())


def run(num_workers: int, per_s: float, seconds: float, proof_s: float) -> tuple[list[RequestRecord], WatchedScheduler]:
    """The first prefill worker dies, and another one comes at JOINS_AT."""
    watched: list[WatchedScheduler] = []

    def a_scheduler() -> WatchedScheduler:
        watched.append(WatchedScheduler())
        return watched[0]

    setting = ClusterSetting(
        prefill=a_pool(num_workers, 4000),
        decode=a_pool(num_workers, 1000),
        kv_bytes_per_token=1000,
        link=SPEED,
        linking=Linking(proof_s=proof_s),
        reporting=Reporting(interval_s=0.25),
        faults=(Fault(pool=Pool.PREFILL, index=0, at_s=JOINS_AT - 2.0, back_after_s=2.0),),
    )
    workload = [
        SimRequest(arrival_s=number / per_s, num_prompt=2500, num_output=101, slo=Slo(1.0, 0.05))
        for number in range(int(per_s * seconds))
    ]
    return simulate(workload, setting, a_scheduler), watched[0]


def test_prefill_worker_that_joins_a_loaded_cluster_gets_handoffs_within_seconds() -> None:
    records, watched = run(num_workers=10, per_s=15.0, seconds=24.0, proof_s=1.0)
    handed_over = [at for at, placed in watched.placed if placed.path is Path.PREFILL_DECODE and placed.prefill == NEW]
    assert JOINS_AT < handed_over[0] < JOINS_AT + 4.0
    assert watched.most_probes[NEW] <= PROBES_PER_PREFILL
    assert max(watched.most_probes.values()) <= PROBES_PER_PREFILL
    assert len(watched.measured) == 1, "the first link, before there were requests"
    assert all(record.outcome is not Outcome.FAILED for record in records)


def test_small_cluster_hands_over_soon_after_its_start() -> None:
    records, watched = run(num_workers=2, per_s=5.0, seconds=10.0, proof_s=1.0)
    assert all(len(watched.reports[WorkerId(name)].links) == 2 for name in ("d0", "d1"))
    paths = Counter(record.path for record in records if record.arrival_s > 5.0)
    assert paths[Path.PREFILL_DECODE] > 0.5 * paths.total()
