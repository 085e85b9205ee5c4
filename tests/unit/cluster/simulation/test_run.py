import random
from typing import Any

import msgspec
import pytest

from cluster.messages.ids import IngressId, Outcome, Path, Pool
from cluster.messages.kv_events import KvTier
from cluster.messages.placement import Placement, PlacementRequest, Rejection, Slo
from cluster.messages.scheduler_events import FirstToken, PrefillDone, RequestClosed
from cluster.messages.transport import LinkSpeed
from cluster.simulation.clock import VirtualLoop
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.pools.pool_setting import ClusterSetting, Fault, PoolSetting, Reporting
from cluster.simulation.pools.simulated_pools import SimulatedPools
from cluster.simulation.run import serve, simulate
from cluster.simulation.traffic.workload import RequestRecord, SimRequest
from tests.expected import of_kind, present
from tests.unit.cluster.simulation.linear_steps import LinearSteps
from tests.unit.cluster.simulation.recording_scheduler import RecordingScheduler

MODEL = LinearSteps()
KV_BYTES = 1000


def a_pool(number: int, **engine: Any) -> PoolSetting:
    engine = {"kv_capacity_tokens": 100_000, "max_step_tokens": 1000, "block_size": 100, **engine}
    return PoolSetting(number=number, engine=EngineSetting(**engine), model=MODEL)


def a_setting(
    num_prefill: int = 2, num_decode: int = 2, engine: dict[str, Any] | None = None, **changes: Any
) -> ClusterSetting:
    given = {
        "prefill": a_pool(num_prefill, **{"max_step_tokens": 4000, **(engine or {})}),
        "decode": a_pool(num_decode, **(engine or {})),
        "kv_bytes_per_token": KV_BYTES,
        "link": LinkSpeed(latency_s=0.002, bytes_per_s=1e8),
    }
    return ClusterSetting(**{**given, **changes})


def a_request(at: float = 0.0, prompt: int = 2500, output: int = 101, **changes: Any) -> SimRequest:
    given = {"arrival_s": at, "num_prompt": prompt, "num_output": output, "slo": Slo(1.0, 0.05)}
    return SimRequest(**{**given, **changes})


def a_workload(number: int, rate: float, seed: int = 1) -> list[SimRequest]:
    chance, at, workload = random.Random(seed), 0.0, []
    for _ in range(number):
        at += chance.expovariate(rate)
        prompt = int(chance.expovariate(1 / 1500)) + 1
        name = f"tenant {chance.randrange(5)}"
        hashes = [f"{name}{i}".encode() for i in range(prompt // 100)]
        output = int(chance.expovariate(1 / 80)) + 1
        workload.append(a_request(at, prompt, output, block_hashes=hashes, tenant=name))
    return workload


class Outcomes:
    """Of a run in which the workers and the Scheduler can be looked at."""

    def __init__(self, workload: list[SimRequest], setting: ClusterSetting, **scheduler: Any) -> None:
        async def run() -> list[RequestRecord]:
            self.scheduler = RecordingScheduler(**scheduler)
            self.pools = SimulatedPools(setting, self.scheduler)
            return await serve(workload, self.pools, self.scheduler)

        self.records = VirtualLoop().run(run())

    def check_settled(self) -> None:
        """Every request is closed, and no worker keeps anything for one."""
        assert not self.scheduler.open
        for worker in self.pools.workers:
            worker.engine.validate()
            assert worker.engine.is_empty
            assert worker.engine.cache.used_share == 0


def test_lone_request_on_path_d_takes_what_the_step_model_says() -> None:
    (record,) = Outcomes([a_request()], a_setting(), path=Path.DECODE).records
    assert record.path is Path.DECODE
    assert record.ttft_s == pytest.approx(3 * 0.010 + 2500 * 1e-4)
    assert record.tpot_s == pytest.approx(MODEL.decode_run_s(1, 2501, 100) / 100)


def test_lone_request_on_path_p_takes_what_the_step_model_says() -> None:
    (record,) = Outcomes([a_request()], a_setting(), path=Path.PREFILL).records
    assert record.path is Path.PREFILL
    assert record.ttft_s == pytest.approx(0.010 + 2500 * 1e-4)
    assert record.tpot_s == pytest.approx(MODEL.decode_run_s(1, 2501, 100) / 100)


def test_lone_request_on_path_p_to_d_has_its_first_token_before_its_transfer() -> None:
    (record,) = Outcomes([a_request()], a_setting(), path=Path.PREFILL_DECODE).records
    assert record.path is Path.PREFILL_DECODE
    assert record.ttft_s == pytest.approx(0.010 + 2500 * 1e-4)
    transfer_s = 0.002 + 2500 * KV_BYTES / 1e8
    assert record.tpot_s == pytest.approx((transfer_s + MODEL.decode_run_s(1, 2501, 100)) / 100)


def test_scheduler_knows_what_a_client_asks_for() -> None:
    seen: list[PlacementRequest] = []

    class Curious(RecordingScheduler):
        async def place(self, request: PlacementRequest, ingress: IngressId | None = None) -> Placement | Rejection:
            seen.append(request)
            return await super().place(request, ingress)

    simulate([a_request(), a_request(max_output=200, asked_path=Path.PREFILL)], a_setting(), Curious)
    assert [(request.max_output_tokens, request.path) for request in seen] == [(None, None), (200, Path.PREFILL)]


def test_single_token_ends_on_the_prefill_worker() -> None:
    run = Outcomes([a_request(output=1)], a_setting(), path=Path.PREFILL_DECODE)
    assert (run.records[0].outcome, run.records[0].tpot_s) == (Outcome.FINISHED, None)
    run.check_settled()


def test_session_tells_the_scheduler_how_far_it_is() -> None:
    run = Outcomes([a_request()], a_setting(), path=Path.PREFILL_DECODE)
    assert [type(event) for event in run.scheduler.told] == [PrefillDone, FirstToken, RequestClosed]
    assert of_kind(RequestClosed, run.scheduler.told[-1]).num_output_tokens == 101


def test_handoffs_to_one_worker_queue_for_its_link() -> None:
    setting = a_setting(2, 1, link=LinkSpeed(latency_s=0.0, bytes_per_s=1e6))
    alone = Outcomes([a_request()], setting, path=Path.PREFILL_DECODE).records[0]
    both = Outcomes([a_request(), a_request()], setting, path=Path.PREFILL_DECODE).records
    waited = [(present(record.tpot_s) - present(alone.tpot_s)) * 100 for record in both]
    assert waited[0] == pytest.approx(0.0, abs=0.2)  # they share the decode steps for a while
    assert waited[1] == pytest.approx(2.5, abs=0.2)


def test_slow_pair_is_slow_and_says_so() -> None:
    slow = LinkSpeed(latency_s=1.0, bytes_per_s=1e8)
    run = Outcomes([a_request()], a_setting(1, 1, slow_links={(0, 0): slow}), path=Path.PREFILL_DECODE)
    assert present(run.records[0].tpot_s) > 1.0 / 100
    assert next(report for report in run.scheduler.reports if report.pool is Pool.DECODE).links == {"p0": slow}


def test_known_prefix_shortens_the_prefill() -> None:
    hashes = [bytes([i]) for i in range(25)]
    requests = [a_request(at, block_hashes=hashes) for at in (0.0, 20.0)]
    first, again = Outcomes(requests, a_setting(0, 1)).records
    assert (first.num_hit_tokens, again.num_hit_tokens) == (0, 2400)
    assert again.ttft_s == pytest.approx(0.010 + 100 * 1e-4)


def test_same_seed_gives_the_same_records() -> None:
    workload, setting = a_workload(150, 4.0), a_setting(engine={"kv_capacity_tokens": 20_000, "host_tokens": 50_000})
    assert simulate(workload, setting, RecordingScheduler) == simulate(workload, setting, RecordingScheduler)


@pytest.mark.parametrize("path", [None, *Path])
def test_every_request_ends_once_and_leaves_nothing_behind(path: Path | None) -> None:
    setting = a_setting(engine={"kv_capacity_tokens": 20_000, "max_decoding": 8, "host_tokens": 50_000})
    workload = a_workload(200, 6.0)
    run = Outcomes(workload, setting, path=path)
    assert [record.outcome for record in run.records] == [Outcome.FINISHED] * 200
    closed = [event.request_id for event in run.scheduler.told if isinstance(event, RequestClosed)]
    assert len(closed) == len(set(closed)) == 200
    run.check_settled()


def test_requests_of_a_worker_that_dies_end_elsewhere() -> None:
    faults = [
        Fault(pool=Pool.DECODE, index=0, at_s=8.0, back_after_s=10.0),
        Fault(pool=Pool.PREFILL, index=1, at_s=15.0, back_after_s=5.0),
    ]
    workload = a_workload(200, 5.0)
    run = Outcomes(workload, a_setting(faults=tuple(faults)))
    assert {record.outcome for record in run.records} == {Outcome.FINISHED}
    assert any(record.num_attempts > 1 for record in run.records)
    assert {worker.id for worker in run.pools.workers} == {"d0.1", "d1", "p0", "p1.1"}
    run.check_settled()


def test_dead_pool_of_colocated_workers_refuses_and_loses_nothing() -> None:
    faults = tuple(Fault(pool=Pool.DECODE, index=i, at_s=5.0) for i in range(2))
    run = Outcomes(a_workload(50, 5.0), a_setting(0, 2, faults=faults))
    outcomes = [record.outcome for record in run.records]
    assert set(outcomes) == {Outcome.FINISHED, Outcome.FAILED, Outcome.REJECTED}
    run.check_settled()


def test_client_without_a_first_token_in_time_is_refused() -> None:
    setting = a_setting(0, 1, first_token_timeout_s=0.5)
    run = Outcomes([a_request(prompt=4000)] * 3, setting)
    assert [record.outcome for record in run.records] == [Outcome.FINISHED, Outcome.REJECTED, Outcome.REJECTED]
    run.check_settled()


def test_request_that_no_worker_could_ever_hold_fails() -> None:
    run = Outcomes([a_request(prompt=99_950, output=51)], a_setting())
    assert run.records[0].outcome is Outcome.FAILED
    run.check_settled()


def test_refused_client_comes_again_when_it_was_told_to() -> None:
    requests = [a_request(output=50), a_request(output=50)]
    once = Outcomes(requests, a_setting(), max_open=1).records[1]
    assert (once.outcome, once.retry_after_s, once.num_tries, once.ttft_s) == (Outcome.REJECTED, 2.0, 1, None)
    again = Outcomes(requests, a_setting(max_tries=3), max_open=1).records[1]
    assert (again.outcome, again.num_tries) == (Outcome.FINISHED, 2)
    assert again.ttft_s == pytest.approx(2.0 + 0.010 + 2500 * 1e-4)


def test_reports_come_in_their_interval_and_as_late_and_wrong_as_they_are_set() -> None:
    reporting = Reporting(interval_s=0.5, delay_s=0.2, load_scale=3.0, seconds_scale=2.0)
    run = Outcomes([a_request()] * 2, a_setting(0, 1, reporting=reporting))
    span_s = max(present(record.ttft_s) + present(record.tpot_s) * 100 for record in run.records)
    assert len(run.scheduler.reports) == pytest.approx(span_s / 0.5, abs=2)
    assert run.scheduler.heard_at[:4] == pytest.approx([0.0, 0.7, 1.2, 1.7])
    busy = [report.load for report in run.scheduler.reports if report.load.num_running]
    assert {load.num_running for load in busy} == {6}
    steps = [step for report in run.scheduler.reports for step in report.steps]
    assert len(steps) > 2
    for step in steps:
        expected = MODEL.step_s(step.num_prefill, step.attended, step.num_decoding, step.context_tokens)
        assert step.seconds == pytest.approx(2 * expected)


def test_kv_events_say_what_the_caches_hold() -> None:
    setting = a_setting(engine={"kv_capacity_tokens": 15_000, "host_tokens": 20_000})

    async def run() -> None:
        scheduler = RecordingScheduler()
        pools = SimulatedPools(setting, scheduler)
        await serve(a_workload(100, 4.0), pools, scheduler)
        scheduler.wants_snapshot = True
        await serve([a_request(100.0)], pools, scheduler)
        for worker in pools.workers:
            mine = [events for events in scheduler.events if events.worker == worker.id]
            assert [events.number for events in mine] == list(range(1, len(mine) + 1))
            held: dict[KvTier, set[bytes]] = {}
            for events in mine:
                if events.is_snapshot:
                    assert all(
                        held.get(change.tier, set()) == set(present(change.block_hashes)) for change in events.changes
                    )
                for change in events.changes:
                    tier = held.setdefault(change.tier, set())
                    hashes = present(change.block_hashes)
                    tier.update(hashes) if change.is_stored else tier.difference_update(hashes)
            told = {change.tier: set(present(change.block_hashes)) for change in worker.engine.cache.snapshot()}
            assert held == told
        assert sum(events.is_snapshot for events in scheduler.events) == 5

    VirtualLoop().run(run())


def test_decode_pool_alone_is_a_colocated_cluster() -> None:
    run = Outcomes(a_workload(50, 3.0), a_setting(0, 3))
    assert {record.path for record in run.records} == {Path.DECODE}
    assert {report.pool for report in run.scheduler.reports} == {Pool.DECODE}


def test_record_is_good_when_it_meets_both_objectives() -> None:
    (record,) = simulate([a_request()], a_setting(), RecordingScheduler)
    assert record.is_good
    assert not msgspec.structs.replace(record, slo=Slo(present(record.ttft_s) / 2, 1.0)).is_good
