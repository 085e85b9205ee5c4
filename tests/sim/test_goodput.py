"""The Scheduler as a whole, on simulated clusters under what may go wrong with them: overload, bursts, bad news.

Four workers, Qwen3-32B on pairs of H100, and the Azure conversation trace faster than it was recorded. About 45
requests a second are what such a cluster attains 90 % of.
"""

import asyncio
from functools import cache
from statistics import median

import msgspec
import pytest

from bench.data.shared_data import shared_file
from bench.preemption import num_good, rush, served
from cluster.messages.ids import IngressId, Outcome, Path, Pool, SloClass
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import ReportReply, WorkerReport
from cluster.messages.scheduler_events import SchedulerEvent
from cluster.messages.transport import LinkSpeed
from cluster.simulation.experiment import Cluster, Experiment
from cluster.simulation.pools.pool_setting import Fault, Reporting
from cluster.simulation.run import simulate
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import parse_slos
from cluster.simulation.traffic.traces import read_trace
from cluster.simulation.traffic.workload import Arrival, RequestRecord, SimRequest, at_rate, rate_per_s
from cluster.slo import Objective, SloConfig
from router.admission.preemption import MAX_PAUSES
from router.pending_placements import PendingPlacements
from router.state import RouterState
from tests.expected import present

TRACE = "traces/AzureLLMInferenceTrace_conv.csv.gz"
MID = Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05)
SLOS = SloConfig(interactive=MID, standard=MID, batch=Objective(ttft_s=30.0, ttft_per_prefill=10.0, tpot_s=0.2))
CAPACITY = 45.0
"""Requests per second."""
FOUR = Cluster(num_workers=4)
BURST_AT = 60.0
"""Seconds from the start."""


def four(**fields: object) -> Cluster:
    return msgspec.structs.replace(FOUR, **fields)


@cache
def rows(number: int) -> tuple[Arrival, ...]:
    return tuple(read_trace(shared_file(TRACE), 0, number))


def a_workload(arrivals: list[Arrival], rate: float, cluster: Cluster = FOUR) -> list[SimRequest]:
    isolated_s = cluster.isolated_prefill_s
    scale = rate / rate_per_s(arrivals)
    return at_rate(arrivals, scale, lambda row: SLOS.of(row.slo_class).resolve(isolated_s(row.num_prompt)))


def a_scheduler() -> PendingPlacements:
    return PendingPlacements(RouterState(SLOS))


@cache
def run(rate: float, number: int = 600, cluster: Cluster = FOUR, num_prefill: int = 2) -> list[RequestRecord]:
    return simulate(a_workload(list(rows(number)), rate, cluster), cluster.split(num_prefill), a_scheduler)


def attainment(records: list[RequestRecord]) -> float:
    return sum(record.is_good for record in records) / len(records)


def per_s(records: list[RequestRecord]) -> float:
    """Goodput."""
    return sum(record.is_good for record in records) / (records[-1].arrival_s - records[0].arrival_s)


def num_handed_over(records: list[RequestRecord]) -> int:
    return sum(record.path is Path.PREFILL_DECODE for record in records)


def finished(records: list[RequestRecord]) -> list[RequestRecord]:
    return [record for record in records if record.outcome is Outcome.FINISHED]


def test_overloaded_cluster_keeps_its_goodput_and_its_word() -> None:
    at_capacity, overloaded = run(CAPACITY, 1000), run(2 * CAPACITY, 1000)
    assert attainment(at_capacity) >= 0.88
    assert attainment(finished(overloaded)) >= 0.9
    assert per_s(overloaded) >= 0.9 * per_s(at_capacity)


def test_wrong_split_costs_hardly_anything() -> None:
    """Workers of both pools take whole requests, so the split of four workers is a hint."""
    attained = [attainment(run(1.1 * CAPACITY, 1000, num_prefill=num_prefill)) for num_prefill in range(4)]
    assert max(attained) < 0.99, "no split carries the load in full: it tells them apart"
    assert max(attained) - min(attained) <= 0.01


def test_prompts_between_the_tokens_are_predicted_once() -> None:
    """With one prefill worker: the decode workers compute most prompts themselves, and the prefill worker decodes."""
    learnt = [record for record in run(0.6 * CAPACITY, 1500, num_prefill=1)[500:] if record.tpot_s]
    for path in (Path.DECODE, Path.PREFILL):
        ratios = [present(record.predicted_tpot_s) / present(record.tpot_s) for record in learnt if record.path is path]
        assert len(ratios) > 50
        assert 0.9 < median(ratios) < 1.1


def test_whoever_is_refused_is_told_when_to_come_again() -> None:
    refused = [record for record in run(2 * CAPACITY, 1000) if record.outcome is Outcome.REJECTED]
    assert len(refused) > 50
    assert all(1.0 <= present(record.retry_after_s) <= 60.0 for record in refused)


@pytest.mark.parametrize(("rate", "number"), [(60.0, 1500), (100.0, 1000)])
def test_first_retry_mostly_succeeds(rate: float, number: int) -> None:
    came_again = [record for record in run(rate, number, four(max_tries=4)) if record.num_tries > 1]
    assert len(came_again) > 100
    first = sum(record.num_tries == 2 and record.outcome is Outcome.FINISHED for record in came_again)
    assert first >= 0.75 * len(came_again)


def a_burst(before: int, burst: int) -> list[SimRequest]:
    """`before`: requests per second before the burst, which takes the second after BURST_AT, and after it."""
    usual = [number / before for number in range(int(BURST_AT) * before)]
    arrivals_s = [*usual, *(BURST_AT + n / burst for n in range(burst)), *(BURST_AT + 1 + s for s in usual)]
    return [
        msgspec.structs.replace(sim, arrival_s=arrival_s)
        for sim, arrival_s in zip(a_workload(list(rows(len(arrivals_s))), CAPACITY), arrivals_s, strict=True)
    ]


BURSTS = [(5, 300), (20, 300), (30, 300), (20, 600)]


@pytest.mark.parametrize(("before", "burst"), BURSTS)
def test_those_whom_a_burst_has_had_refused_are_taken_when_they_were_told(before: int, burst: int) -> None:
    records = simulate(a_burst(before, burst), four(max_tries=2).split(2), a_scheduler)
    came_again = [record for record in records if record.num_tries > 1]
    assert len(came_again) > burst / 4
    assert sum(record.outcome is Outcome.FINISHED for record in came_again) >= 0.8 * len(came_again)


class Impatient(PendingPlacements):
    """Has all who are refused ask again and again, and notes when each is let in, in seconds after BURST_AT."""

    ASK_EVERY_S = 0.5

    def __init__(self) -> None:
        super().__init__(RouterState(SLOS))
        self.let_in: dict[int, float] = {}

    async def place(self, request: PlacementRequest, ingress: IngressId | None = None) -> Placement | Rejection:
        answer = await super().place(request, ingress)
        if isinstance(answer, Rejection):
            return msgspec.structs.replace(answer, retry_after_s=self.ASK_EVERY_S)
        number = int(request.request_id.partition(".")[0])
        self.let_in[number] = asyncio.get_running_loop().time() - BURST_AT
        return answer


@pytest.mark.parametrize(("before", "burst"), BURSTS[1:])
def test_retry_after_is_right_within_a_factor(before: int, burst: int) -> None:
    """The n-th of those whom a burst has had refused is told the time at which the n-th is let in if all of them ask
    twice a second instead. The header has whole seconds: one of them does not matter. After a burst that is over within
    seconds those who ask so often are the load.
    """
    arrivals = a_burst(before, burst)
    of_burst = range(before * int(BURST_AT), before * int(BURST_AT) + burst)
    schedulers: list[Impatient] = []

    def an_impatient_scheduler() -> Impatient:
        schedulers.append(Impatient())
        return schedulers[-1]

    records = simulate(arrivals, FOUR.split(2), a_scheduler)
    asking = simulate(arrivals, four(max_tries=1000).split(2), an_impatient_scheduler)
    told = sorted(
        records[n].arrival_s - BURST_AT + present(records[n].retry_after_s)
        for n in of_burst
        if records[n].outcome is Outcome.REJECTED
    )
    let_in = sorted(schedulers[0].let_in[n] for n in of_burst if asking[n].num_tries > 1)
    pairs = list(zip(told, let_in, strict=False))
    right = [is_told / 1.5 <= takes <= 1.5 * is_told or abs(is_told - takes) <= 1.0 for is_told, takes in pairs]
    assert len(right) > burst / 4
    assert sum(right) >= 0.85 * len(right)


def test_interactive_requests_are_served_as_if_alone_while_others_overload() -> None:
    def classed(number: int) -> SloClass:
        return SloClass.INTERACTIVE if number % 4 == 0 else SloClass.STANDARD

    mixed = [msgspec.structs.replace(row, slo_class=classed(number)) for number, row in enumerate(rows(1500))]
    alone = [row for row in mixed if row.slo_class is SloClass.INTERACTIVE]
    together = simulate(a_workload(mixed, 2 * CAPACITY), FOUR.split(2), a_scheduler)
    by_themselves = simulate(a_workload(alone, 2 * CAPACITY / 4), FOUR.split(2), a_scheduler)
    interactive = [record for record in together if record.slo_class is SloClass.INTERACTIVE]
    assert attainment(interactive) >= attainment(by_themselves) - 0.02


def test_batch_requests_give_way_and_are_served_in_the_end() -> None:
    mixed = [
        msgspec.structs.replace(row, slo_class=SloClass.BATCH if number % 2 else SloClass.STANDARD)
        for number, row in enumerate(rows(500))
    ]
    records = simulate(a_workload(mixed, 1.2 * CAPACITY), FOUR.split(2), a_scheduler)
    for slo_class in (SloClass.STANDARD, SloClass.BATCH):
        assert attainment([record for record in records if record.slo_class is slo_class]) >= 0.9


def test_batch_requests_pause_for_interactive_ones_and_goodput_rises() -> None:
    """A batch job fills the workers, and a chat begins."""
    workload = rush(num_chat=150, num_job=160, begins_s=12.0, seed=0)
    without, with_pauses = served(workload, preempts=False), served(workload, preempts=True)
    assert not [record for record in with_pauses if record.outcome is Outcome.FAILED]
    assert num_good(with_pauses, SloClass.INTERACTIVE) >= num_good(without, SloClass.INTERACTIVE) + 15
    assert num_good(with_pauses, SloClass.BATCH) >= num_good(without, SloClass.BATCH) - 5
    paused = [record for record in with_pauses if record.num_pauses]
    assert paused
    assert {(record.slo_class, record.outcome) for record in paused} == {(SloClass.BATCH, Outcome.FINISHED)}
    assert max(record.num_pauses for record in paused) <= MAX_PAUSES


def test_same_traffic_gives_the_same_decisions() -> None:
    assert run(2 * CAPACITY, 300) == run.__wrapped__(2 * CAPACITY, 300)


@pytest.mark.parametrize(
    ("reporting", "least"),
    [
        (Reporting(interval_s=3.0, delay_s=3.0, kv_events_s=3.0), 0.95),
        (Reporting(load_scale=3.0), 0.95),
        (Reporting(seconds_scale=2.0), 0.9),
        (Reporting(seconds_scale=0.5), 0.9),
        (Reporting(kv_events_s=None), 0.95),
    ],
)
def test_bad_news_costs_little(reporting: Reporting, least: float) -> None:
    assert attainment(run(30.0, cluster=four(reporting=reporting))) >= least


def test_slow_link_makes_requests_stay() -> None:
    """A mixture of experts at a TPOT with little room for prompts beside decodes, which therefore are handed over."""

    def on_link(gigabytes_per_s: float) -> list[RequestRecord]:
        link = LinkSpeed(latency_s=1e-3, bytes_per_s=gigabytes_per_s * 1e9)
        cluster = four(model="qwen3-30b-a3b", tensor_parallel=1, link=link)
        return Experiment(generate(MIXES["poisson"], 400, 0), cluster, parse_slos("1+3x/0.0065")).run("goodput", 2, 2.0)

    fast, slow = on_link(90.0), on_link(0.2)
    assert num_handed_over(fast) > 100
    assert num_handed_over(slow) < num_handed_over(fast) / 2
    assert attainment(slow) >= attainment(fast) - 0.02


def test_wrong_split_of_the_pools_is_made_up_for() -> None:
    eight = four(num_workers=8)
    attained = [attainment(run(90.0, 400, eight, number)) for number in range(1, 8)]
    assert min(attained[:6]) >= 0.95


def test_worker_that_dies_over_and_over_takes_nobody_with_it() -> None:
    faults = tuple(Fault(pool=Pool.DECODE, index=0, at_s=4.0 * number, back_after_s=2.0) for number in range(1, 6))
    records = run(25.0, cluster=four(faults=faults))
    assert not [record for record in records if record.outcome is Outcome.FAILED]
    assert attainment(records) >= 0.85


class Restarted:
    """A Scheduler that forgets everything now and then."""

    def __init__(self, times_s: list[float]) -> None:
        self._latest = a_scheduler()
        self._times_s = times_s

    @property
    def scheduler(self) -> PendingPlacements:
        if self._times_s and asyncio.get_running_loop().time() >= self._times_s[0]:
            self._times_s.pop(0)
            self._latest = a_scheduler()
        return self._latest

    async def place(self, request: PlacementRequest, ingress: IngressId | None = None) -> Placement | Rejection:
        return await self.scheduler.place(request, ingress)

    def tell(self, event: SchedulerEvent) -> None:
        self.scheduler.tell(event)

    def report(self, report: WorkerReport) -> ReportReply:
        return self.scheduler.report(report)

    def kv_events(self, events: KvEvents) -> bool:
        return self.scheduler.kv_events(events)


def test_restarted_scheduler_goes_on() -> None:
    records = simulate(a_workload(list(rows(600)), 25.0), FOUR.split(2), lambda: Restarted([8.0, 16.0]))
    assert attainment(records) >= 0.9


def test_split_of_the_pools_is_a_hint_alone() -> None:
    """Whatever the split, as many requests meet their SLO as where all workers are equal."""
    good = {
        num_prefill: sum(record.is_good for record in run(0.9 * CAPACITY, 1000, num_prefill=num_prefill))
        for num_prefill in (0, 1, 2, 3)
    }
    assert min(good.values()) > 0.97 * good[0]
