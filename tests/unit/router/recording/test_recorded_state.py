"""What the Scheduler is told and decides is recorded so that the same decisions can be made again."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.messages.ids import IngressId, Path, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from cluster.messages.reports import EngineShape, ReportDelta, StandingReport, StepSample, WorkerLoad, WorkerReport
from cluster.messages.scaling import ScalingAsk
from cluster.messages.scheduler_events import (
    EngineLostWith,
    FirstToken,
    HandoffChecked,
    HandoffVerdict,
    PrefillDone,
    RequestClosed,
    WorkerLeft,
    WorkerLost,
)
from cluster.slo import Objective, SloConfig
from router.placement import cost
from router.recording.recorded_state import RecordedState
from router.recording.records import PlacementAsked, Reported
from router.replay.stepper import DecisionKind
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report
from tests.unit.router.recording.memory_log import MemoryLog, different, kinds, replayed

PREFILLS, DECODES = [WorkerId(f"p{i}") for i in range(3)], [WorkerId(f"d{i}") for i in range(3)]
WORKERS = [*PREFILLS, *DECODES]
INGRESSES = [IngressId("one"), IngressId("other")]
SHAPE = EngineShape(kind="k", kv_capacity_tokens=60_000, kv_bytes_per_token=100_000, has_short_steps=True)
SLO = SloConfig(standard=Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05))


class Chaos:
    """Calls in a random order, as far as a seed says: requests that come and go, workers that come and go."""

    def __init__(self, seed: int, log: MemoryLog) -> None:
        self._chance = random.Random(seed)
        self._state = RecordedState(RouterState(SLO), log)
        self._now = 0.0
        self._numbers = dict.fromkeys(WORKERS, 0)
        self._requests = 0

    def run(self, num_calls: int) -> None:
        for worker in WORKERS:
            self._report(worker)
        often: list[Callable[[], None]] = [self._place, self._event, self._place, self._event, self._a_report]
        often.append(self._wait)
        seldom: list[Callable[[], None]] = [self._decide, self._kv_events, self._trouble, self._ingress, self._look]
        for _ in range(num_calls):
            self._chance.choice([*often, *often, *seldom])()

    def _wait(self) -> None:
        self._now += self._chance.choice((0.001, 0.05, 0.05, 0.3, 2.0))

    def _request_id(self) -> RequestId:
        return RequestId(f"r{self._chance.randrange(max(0, self._requests - 12), self._requests + 1)}")

    def _place(self) -> None:
        chance = self._chance
        self._requests += 1
        number = chance.choice((self._requests, self._requests, chance.randrange(self._requests) + 1))
        request = a_placement_request(
            f"r{number}",
            num_prompt_tokens=chance.choice((20, 2000, 20_000)),
            block_hashes=[b"%08d" % (block + 100 * (number % 3)) for block in range(chance.choice((0, 1, 30)))],
            slo_class=chance.choice(list(SloClass)),
            path=chance.choice((None, None, None, None, *Path)),
            attempt=1 if number == self._requests else 2,
            can_pause=chance.random() < 0.7,
            tenant=chance.choice(("a", "b")),
            digest=b"%d" % (number % 5),
            excluded=frozenset(chance.sample(WORKERS, chance.choice((0, 0, 2)))),
            max_output_tokens=chance.choice((None, 1, 300)),
        )
        self._state.place(
            request, self._now, chance.choice((None, *INGRESSES)), turns_away=chance.random() < 0.02 and number == 1
        )
        self._state.take_pauses()

    def _event(self) -> None:
        chance, request_id = self._chance, self._request_id()
        closed = RequestClosed(
            request_id=request_id,
            digest=b"%d" % chance.randrange(5),
            num_output_tokens=chance.choice((None, 3, 400)),
            ttft_s=0.4,
            tpot_s=0.03,
        )
        event = chance.choice((PrefillDone(request_id=request_id), FirstToken(request_id=request_id), closed))
        self._state.handle(event, self._now, chance.choice(INGRESSES))

    def _a_report(self) -> None:
        self._report(self._chance.choice(WORKERS))

    def _report(self, worker: WorkerId) -> None:
        chance = self._chance
        whole = a_prefill_report(worker) if worker in PREFILLS else a_decode_report(worker, " ".join(PREFILLS[:2]))
        steps = [StepSample(256, 40_000, 4, 20_000, chance.uniform(0.02, 0.05)) for _ in range(chance.randrange(3))]
        load = WorkerLoad(num_running=chance.randrange(5), kv_cache_usage=chance.random(), num_open=chance.randrange(9))
        report = msgspec.structs.replace(whole, shape=SHAPE, load=load, steps=steps, max_requests=6, version=1)
        if chance.random() < 0.5:
            self._reported(report)
            return
        its = StandingReport(
            report.pool, report.address, report.max_requests, report.shape, report.transport, report.links
        )
        standing = its if chance.random() < 0.5 else None
        delta = ReportDelta(worker, 1, standing, load, steps, [], self._numbers[worker], None)
        known = self._state.exchange.whole(delta)
        if known is not None:
            self._reported(known)

    def _reported(self, report: WorkerReport) -> None:
        self._state.handle(report, self._now)
        reply = self._state.reply_to(report, self._now)
        self._state.exchange.reply(report, reply)

    def _decide(self) -> None:
        self._state.decide(self._now, 8)
        self._state.take_pauses()

    def _kv_events(self) -> None:
        worker = self._chance.choice(WORKERS)
        self._numbers[worker] += self._chance.choice((1, 1, 2))
        keys = [b"%08d" % (block + 100 * self._chance.randrange(3)) for block in range(20)]
        changes = [KvChange(KvTier.GPU, self._chance.random() < 0.8, keys)]
        self._state.handle_kv_events(
            KvEvents(worker, self._numbers[worker], self._chance.random() < 0.3, True, changes), self._now
        )

    def _trouble(self) -> None:
        chance, worker = self._chance, self._chance.choice(WORKERS)
        ingress = chance.choice(INGRESSES)
        match chance.randrange(6):
            case 0:
                self._state.disconnected(worker)
            case 1:
                self._state.handle(WorkerLeft(worker=worker, engine_silent_s=chance.choice((None, 3.0))), self._now)
            case 2:
                self._state.handle(WorkerLost(worker=worker), self._now, ingress)
            case 3:
                lost = EngineLostWith(digest=b"%d" % chance.randrange(5), worker=worker, num_engines_lost=2)
                self._state.handle(lost, self._now, ingress)
            case 4:
                verdict = chance.choice(list(HandoffVerdict))
                pair = HandoffChecked(prefill=PREFILLS[0], decode=DECODES[0], verdict=verdict, distance=0.2)
                self._state.handle(pair, self._now, ingress)
            case _:
                self._state.index.miss(worker)
                self._state.index.sweep()

    def _ingress(self) -> None:
        ingress = self._chance.choice(INGRESSES)
        if self._chance.random() < 0.5:
            self._state.withdraw_of(ingress)
        else:
            still = frozenset(RequestId(f"r{number}") for number in range(max(0, self._requests - 8), self._requests))
            self._state.keep_open(ingress, still, self._now)

    def _look(self) -> None:
        self._state.roster(0, self._now)
        self._state.queued(self._now)
        self._state.load.read(ScalingAsk(self._chance.sample(WORKERS, 1)), "process", self._now)


@given(seed=st.integers(0, 1 << 32), num_calls=st.sampled_from([30, 150]))
@settings(max_examples=10, deadline=None)
def test_all_decisions_are_made_again_from_the_start_and_from_each_snapshot(seed: int, num_calls: int) -> None:
    log = MemoryLog(snapshot_every=40)
    Chaos(seed, log).run(num_calls)
    records = log.as_read()
    assert different(replayed(records, SLO)) == []
    for place, snapshot in log.snapshots:
        assert different(replayed(records[place:], SLO, snapshot)) == []


def test_chaos_has_placements_that_wait_refusals_pauses_and_replies_that_ask_for_something() -> None:
    """Otherwise the test above would show little."""
    log = MemoryLog()
    for seed in range(4):
        Chaos(seed, log).run(300)
    answers = [record.answer for record in log.records if isinstance(record, PlacementAsked)]
    assert {type(answer).__name__ for answer in answers} >= {"NoneType", "Placement", "Rejection"}
    assert any(isinstance(record, Reported) and record.reply is not None for record in log.records)


def test_changed_policy_is_found_as_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog()
    Chaos(1, log).run(200)
    monkeypatch.setattr(cost, "MARGIN", 0.5 * cost.MARGIN)
    found = different(replayed(log.as_read(), SLO))
    assert kinds(found)[DecisionKind.PLACEMENT]


def test_call_that_fails_is_recorded_and_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    log = MemoryLog()
    router_state = RouterState(SLO)
    state = RecordedState(router_state, log)
    monkeypatch.setattr(RouterState, "place", fails)
    with pytest.raises(RuntimeError):
        state.place(a_placement_request("r"), 0.0)
    (record,) = log.as_read()
    assert isinstance(record, PlacementAsked)
    assert record.answer == "RuntimeError: a defect"
    assert different(replayed([record], SLO)) == []


def test_recorded_state_has_what_the_service_calls() -> None:
    """A call that goes past the record would end the exactness of replays."""
    for_metrics = {"models", "trust", "queue", "by_worker"}
    plain = {name for name in dir(RouterState(SLO)) if not name.startswith("_")} - for_metrics
    recorded = {name for name in dir(RecordedState(RouterState(SLO), MemoryLog())) if not name.startswith("_")}
    assert recorded == plain
