from collections import Counter
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cluster.messages.ids import IngressId, Path, Pool, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import EngineShape, WorkerLoad, WorkerReport
from cluster.messages.scheduler_events import (
    FirstToken,
    HandoffChecked,
    HandoffVerdict,
    PrefillDone,
    RequestClosed,
    WorkerLeft,
    WorkerLost,
)
from router.load.live_workers import REPORT_TIMEOUT_S
from router.state import RouterState
from router.trust.suspected_pairs import PAIR_QUARANTINE_S
from tests.expected import of_kind, present
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report, ids

PREFILLS, DECODES = [WorkerId(f"p{i}") for i in range(3)], [WorkerId(f"d{i}") for i in range(3)]
workers = st.sampled_from(PREFILLS + DECODES)
requests = st.sampled_from([RequestId(f"r{i}") for i in range(10)])


def a_state(num_prefill: int = 2, num_decode: int = 2) -> RouterState:
    """Every pair connected."""
    state = RouterState()
    for prefill in PREFILLS[:num_prefill]:
        state.handle(a_prefill_report(prefill), now=0.0)
    for decode in DECODES[:num_decode]:
        state.handle(a_decode_report(decode, " ".join(PREFILLS[:num_prefill])), now=0.0)
    return state


def load(state: RouterState, now: float = 0.0) -> dict[str, int]:
    return {w.worker: w.num_placed for w in state.view(now).workers if w.num_placed}


def a_pair_request(request_id: str = "r", **fields: object) -> PlacementRequest:
    """It runs on a pair."""
    return a_placement_request(request_id, **({"path": Path.PREFILL_DECODE} | fields))


def closed(request_id: str) -> RequestClosed:
    return RequestClosed(request_id=RequestId(request_id))


def test_worker_exists_until_its_reports_time_out() -> None:
    state = a_state(num_prefill=1, num_decode=1)
    assert state.view(REPORT_TIMEOUT_S).num_links == 1
    assert state.view(REPORT_TIMEOUT_S + 0.001).workers == []


def test_worker_whose_connection_has_ended_is_out_until_it_reports_again() -> None:
    state = a_state(num_prefill=1, num_decode=1)
    state.disconnected(WorkerId("p0"))
    assert state.roster(0, 1.0).num_links == 0
    state.handle(a_prefill_report("p0"), now=1.5)
    assert state.roster(0, 1.5).num_links == 1


def placed_on(state: RouterState, ingress: str, now: float, number: int = 4) -> set[WorkerId | None]:
    """The decode workers that requests of an ingress are placed on."""
    answers = [state.place(a_placement_request(f"{ingress}{n}-{now}"), now, IngressId(ingress)) for n in range(number)]
    return {answer.decode for answer in answers if isinstance(answer, Placement)}


def test_worker_that_one_ingress_cannot_reach_stays_for_the_others() -> None:
    state = a_state(num_prefill=0, num_decode=2)
    for number in range(50):
        now = number / 100
        state.handle(WorkerLost(worker=DECODES[0]), now, IngressId("bad"))
        assert placed_on(state, "bad", now, number=1) == {DECODES[1]}
        state.keep_open(IngressId("bad"), frozenset(), now)
    assert DECODES[0] in placed_on(state, "good", 0.5)
    state.keep_open(IngressId("good"), frozenset(), 0.9)
    assert placed_on(state, "bad", 0.99) == {DECODES[1]}
    assert DECODES[0] in placed_on(state, "bad", 1.01)


def test_worker_that_two_ingresses_cannot_reach_is_out_until_its_next_report() -> None:
    state = a_state(num_prefill=0, num_decode=2)
    for ingress in ("one", "other"):
        state.handle(WorkerLost(worker=DECODES[0]), 0.0, IngressId(ingress))
    assert placed_on(state, "third", 0.1) == {DECODES[1]}
    state.handle(a_decode_report(DECODES[0], "p0"), 0.2)
    assert DECODES[0] in placed_on(state, "third", 0.3)
    assert placed_on(state, "one", 0.3) == {DECODES[1]}


def test_worker_that_an_ingress_cannot_reach_is_tried_where_there_is_no_other() -> None:
    state = a_state(num_prefill=0, num_decode=1)
    state.handle(WorkerLost(worker=DECODES[0]), 0.0, IngressId("bad"))
    assert placed_on(state, "bad", 0.1) == {DECODES[0]}


def test_worker_without_a_fresh_report_gets_no_request() -> None:
    state = a_state(num_prefill=1, num_decode=1)
    state.handle(a_decode_report("d0", "p0"), now=5.0)
    answer = state.place(a_placement_request(), now=REPORT_TIMEOUT_S + 1.0)
    assert isinstance(answer, Placement)
    assert (answer.path, answer.prefill) == (Path.DECODE, None)


def test_worker_that_has_missed_reports_takes_what_the_others_cannot() -> None:
    state = a_state(num_prefill=0, num_decode=2)
    state.handle(a_decode_report("d0", ""), now=4.0)
    state.handle(a_decode_report("d0", ""), now=5.0)
    answers = [state.place(a_placement_request(excluded=ids(excluded)), now=5.0) for excluded in ("", "d0")]
    assert [of_kind(Placement, answer).decode for answer in answers] == ["d0", "d1"]


def test_placed_request_is_charged_to_both_workers_until_it_is_closed() -> None:
    state = a_state(num_prefill=1, num_decode=1)
    state.place(a_pair_request("r"), now=0.0)
    assert load(state) == {"p0": 1, "d0": 1}
    state.handle(closed("r"), now=0.0)
    assert load(state) == {}


def test_request_that_is_placed_again_is_charged_once() -> None:
    state = a_state(num_prefill=2, num_decode=1)
    state.place(a_pair_request("r"), now=0.0)
    state.place(a_pair_request("r", excluded=ids("p0")), now=0.0)
    assert load(state) == {"p1": 1, "d0": 1}


def test_request_that_is_refused_the_second_time_is_charged_no_more() -> None:
    state = a_state(num_prefill=1, num_decode=1)
    state.place(a_pair_request("r"), now=0.0)
    state.place(a_pair_request("r", excluded=ids("p0 d0")), now=0.0)
    assert load(state) == {}


def a_small_report(worker: str, **load: int) -> WorkerReport:
    """Of a decode worker that takes three requests."""
    return msgspec.structs.replace(a_decode_report(worker, ""), max_requests=3, load=WorkerLoad(**load))


def test_full_worker_gets_no_request_however_fast_they_come() -> None:
    state = RouterState()
    for worker in DECODES[:2]:
        state.handle(a_small_report(worker), now=0.0)
    answers = [state.place(a_placement_request(f"r{number}"), now=0.0) for number in range(7)]
    assert load(state) == {"d0": 3, "d1": 3}
    assert isinstance(answers[-1], Rejection)
    state.handle(closed("r0"), now=0.0)
    assert isinstance(state.place(a_placement_request("again"), now=0.0), Placement)


def test_requests_that_nobody_here_has_placed_take_room_as_soon_as_they_are_reported() -> None:
    state = RouterState()
    state.handle(a_small_report("d0"), now=0.0)
    state.place(a_placement_request("r0"), now=0.0)
    state.handle(a_small_report("d0", num_running=3), now=0.01)
    assert isinstance(state.place(a_placement_request("r1"), now=0.02), Rejection)


def test_charge_outlives_a_gap_in_the_reports() -> None:
    state = a_state(num_prefill=1, num_decode=1)
    state.place(a_pair_request("r"), now=0.0)
    state.disconnected(WorkerId("d0"))
    state.handle(a_decode_report("d0", "p0"), now=2.0)
    assert load(state, now=2.0) == {"p0": 1, "d0": 1}


def test_charges_of_an_ingress_end_with_it() -> None:
    state = a_state(num_prefill=1, num_decode=1)
    one, other = IngressId("one"), IngressId("other")
    state.place(a_pair_request("r"), now=0.0, ingress=one)
    state.place(a_pair_request("s"), now=0.0, ingress=one)
    state.place(a_pair_request("t"), now=0.0, ingress=other)
    state.keep_open(one, frozenset({RequestId("s")}), 0.0)
    assert load(state) == {"p0": 2, "d0": 2}
    state.keep_open(one, frozenset(), 0.0)
    assert load(state) == {"p0": 1, "d0": 1}
    state.validate()


def a_strike(prefill: WorkerId, decode: WorkerId, number: int) -> HandoffChecked:
    wrong = HandoffVerdict.COPY_WRONG
    return HandoffChecked(prefill=prefill, decode=decode, verdict=wrong, distance=9.0, num_strikes=number)


def test_pair_whose_handoff_was_wrong_twice_is_tried_again_after_a_while() -> None:
    state = a_state(num_prefill=1, num_decode=1)
    state.handle(a_strike(WorkerId("p0"), WorkerId("d0"), 2), now=0.0)
    is_used = []
    for now in (1.0, PAIR_QUARANTINE_S + 1):
        for report in (a_prefill_report("p0"), a_decode_report("d0", "p0")):
            state.handle(report, now)
        is_used.append(isinstance(state.place(a_pair_request(), now), Placement))
    assert is_used == [False, True]


def test_kv_events_of_workers_count_while_they_report() -> None:
    state = a_state(num_prefill=1, num_decode=1)
    first = KvEvents(DECODES[0], 1, True, True, [])
    report = msgspec.structs.replace(a_decode_report(DECODES[0], "p0"), kv_events_through=1)
    assert state.reply_to(report, 0.0).wants_kv_snapshot
    state.handle_kv_events(first, 0.0)
    assert not state.reply_to(report, 0.0).wants_kv_snapshot
    assert not state.reply_to(a_decode_report(DECODES[0], "p0"), 0.0).wants_kv_snapshot, "it sends none"
    state.handle(WorkerLeft(worker=DECODES[0]), 0.0)
    state.handle_kv_events(first, 0.0)
    state.handle(report, 0.0)
    assert state.reply_to(report, 0.0).wants_kv_snapshot
    state.validate()


def test_worker_that_one_ingress_cannot_reach_keeps_what_is_known_of_it() -> None:
    """It lives: its prefix index must not be sent anew, nor the speed of its links learnt anew."""
    state = a_state(num_prefill=1, num_decode=1)
    report = msgspec.structs.replace(a_decode_report(DECODES[0], "p0"), kv_events_through=1)
    state.handle_kv_events(KvEvents(DECODES[0], 1, True, True, []), 0.0)
    link = state.models.transfers.link(WorkerId("p0"), DECODES[0], None)
    state.handle(WorkerLost(worker=DECODES[0]), 0.0)
    assert not state.handle_kv_events(KvEvents(DECODES[0], 2, False, True, []), 0.0)
    state.handle(report, 0.0)
    assert not state.reply_to(msgspec.structs.replace(report, kv_events_through=2), 0.0).wants_kv_snapshot
    assert state.models.transfers.link(WorkerId("p0"), DECODES[0], None) is link
    state.validate()


def test_scheduler_that_stood_still_knows_its_workers_as_before() -> None:
    """Its reports are read one after the other, and KV events perhaps before some of them."""
    state = a_state(num_prefill=1, num_decode=2)
    for worker in DECODES[:2]:
        state.handle_kv_events(KvEvents(worker, 1, True, True, []), 0.0)
    assert isinstance(state.place(a_placement_request("r", path=Path.DECODE), 0.0), Placement)
    charged = {worker.worker: worker.num_placed for worker in state.view(0.0).workers}
    later = 10 * REPORT_TIMEOUT_S
    for worker in DECODES[:2]:
        assert not state.handle_kv_events(KvEvents(worker, 2, False, True, []), later)
        report = msgspec.structs.replace(a_decode_report(worker, "p0"), kv_events_through=2)
        state.handle(report, later)
        assert not state.reply_to(report, later).wants_kv_snapshot
        state.validate()
    state.handle(a_prefill_report("p0"), later)
    assert {worker.worker: worker.num_placed for worker in state.view(later).workers} == charged


def test_worker_that_nobody_reaches_and_that_is_silent_is_forgotten() -> None:
    state = a_state(num_prefill=1, num_decode=1)
    state.handle_kv_events(KvEvents(DECODES[0], 1, True, True, []), 0.0)
    state.disconnected(DECODES[0])
    for second in range(int(REPORT_TIMEOUT_S) + 2):
        state.handle(a_prefill_report("p0"), float(second))
    assert state.handle_kv_events(KvEvents(DECODES[0], 2, False, True, []), REPORT_TIMEOUT_S + 1.0)
    assert state.address_of(DECODES[0]) is None


def test_closing_an_unknown_request_changes_nothing() -> None:
    state = a_state()
    state.handle(closed("never placed"), now=0.0)
    assert load(state) == {}


def test_requests_that_end_at_once_take_turns_over_all_pairs() -> None:
    state = a_state(num_prefill=2, num_decode=3)
    used: Counter[tuple[WorkerId | None, WorkerId | None]] = Counter()
    for i in range(12):
        answer = state.place(a_pair_request(f"r{i}"), now=0.0)
        assert isinstance(answer, Placement)
        used[answer.prefill, answer.decode] += 1
        state.handle(closed(f"r{i}"), now=0.0)
    assert len(used) == 6
    assert set(used.values()) == {2}


LONGER_THAN_ANY_OBJECTIVE_S = 1e5


class RouterStateMachine(RuleBasedStateMachine):
    """Any history of reports, losses, placements, progress, closes and silence, against a plain model.
    Words may be lost, come twice or come late.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = RouterState()
        self.now = 100.0
        self.reports: dict[WorkerId, tuple[WorkerReport, float]] = {}
        self.charges: dict[RequestId, Placement] = {}
        self.waiting: dict[RequestId, PlacementRequest] = {}
        self.suspects: dict[tuple[str, str], float] = {}

    @rule(prefill=st.sampled_from(PREFILLS), decode=st.sampled_from(DECODES))
    def suspect(self, prefill: WorkerId, decode: WorkerId) -> None:
        self.suspects[prefill, decode] = self.now + PAIR_QUARANTINE_S
        self.state.handle(a_strike(prefill, decode, 2), self.now)

    @rule(
        worker=workers,
        connected=st.frozensets(st.sampled_from(PREFILLS)),
        num_running=st.integers(0, 50),
        usage=st.sampled_from([0.0, 0.5, 1.0, float("nan"), float("inf")]),
    )
    def report(self, worker: WorkerId, connected: frozenset[WorkerId], num_running: int, usage: float) -> None:
        report = a_prefill_report(worker) if worker in PREFILLS else a_decode_report(worker, " ".join(connected))
        load = WorkerLoad(num_running=num_running, kv_cache_usage=usage)
        shape = EngineShape(kv_capacity_tokens=300_000, kv_bytes_per_token=100_000)
        report = msgspec.structs.replace(report, load=load, shape=shape)
        self.reports[worker] = (report, self.now)
        self.state.handle(report, self.now)

    @rule(worker=workers)
    def lose(self, worker: WorkerId) -> None:
        self.reports.pop(worker, None)
        self.state.disconnected(worker)

    @rule(worker=workers)
    def cannot_be_reached_by_another_ingress(self, worker: WorkerId) -> None:
        """Changes nothing for the one that places here."""
        self.state.handle(WorkerLost(worker=worker), self.now, IngressId("bad"))

    @rule(request_id=requests, num_output_tokens=st.sampled_from([None, 0, 1, 500]))
    def close(self, request_id: RequestId, num_output_tokens: int | None) -> None:
        self.charges.pop(request_id, None)
        self.waiting.pop(request_id, None)
        event = RequestClosed(
            request_id=request_id, num_output_tokens=num_output_tokens, ttft_s=0.5 if num_output_tokens else None
        )
        self.state.handle(event, self.now)

    @rule(request_id=requests)
    def prefill_is_done(self, request_id: RequestId) -> None:
        self.state.handle(PrefillDone(request_id=request_id), self.now)

    @rule(request_id=requests)
    def has_first_token(self, request_id: RequestId) -> None:
        self.state.handle(FirstToken(request_id=request_id), self.now)
        placed = self.charges.get(request_id)
        if placed is not None and placed.path is Path.PREFILL_DECODE:
            self.charges[request_id] = msgspec.structs.replace(placed, prefill=None)

    @rule()
    def decide(self) -> None:
        for request_id, answer in self.state.decide(self.now):
            assert not isinstance(answer, Exception)
            self.answered(self.waiting.pop(request_id), answer)

    @rule()
    def next_decision_comes(self) -> None:
        """Somebody is answered, or is worth another look later: nobody who owns this is kept busy."""
        at = self.state.next_decision_at()
        if at is not None:
            num_waiting = self.state.num_waiting
            self.now = max(self.now, at)
            self.decide()
            later = self.state.next_decision_at()
            assert self.state.num_waiting < num_waiting or (later is not None and later > self.now)

    @rule()
    def all_deadlines_come(self) -> None:
        for request_id in list(self.charges):
            self.close(request_id, None)
        self.now += LONGER_THAN_ANY_OBJECTIVE_S
        self.decide()
        assert self.state.num_waiting == 0

    @initialize()
    def all_report(self) -> None:
        for worker in PREFILLS + DECODES:
            self.report(worker, frozenset(PREFILLS), 1, 0.1)

    @rule(seconds=st.one_of(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 2 * REPORT_TIMEOUT_S)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        request_id=requests,
        can_hand_over=st.booleans(),
        excluded=st.frozensets(workers, max_size=3),
        path=st.sampled_from([None, None, None, *Path]),
        num_prompt_tokens=st.sampled_from([1, 2000, 2000, 100_000]),
        slo_class=st.sampled_from(list(SloClass)),
        has_early_token=st.booleans(),
        max_output_tokens=st.sampled_from([None, 1, 100]),
        age_s=st.sampled_from([0.0, 0.0, 5.0]),
        ttft_s=st.sampled_from([None, 2.0, 2.0]),
    )
    def place(self, request_id: RequestId, **fields: Any) -> None:
        request = a_placement_request(request_id, **fields)
        answer = self.state.place(request, self.now)
        self.charges.pop(request_id, None)
        self.waiting.pop(request_id, None)
        if answer is None:
            self.waiting[request_id] = request
        else:
            self.answered(request, answer)

    def answered(self, request: PlacementRequest, answer: Placement | Rejection) -> None:
        assert request.request_id not in self.charges
        if isinstance(answer, Placement):
            self.charges[request.request_id] = answer
            self.check_placement(request, answer)
        elif answer.is_overload:
            assert 1.0 <= answer.retry_after_s <= 60.0
        else:
            self.check_refusal(request)

    def check_placement(self, request: PlacementRequest, answer: Placement) -> None:
        live = self.live()
        assert {w for w in (answer.prefill, answer.decode) if w} <= live.keys() - request.excluded
        assert request.path in (None, answer.path)
        if answer.path is Path.PREFILL_DECODE:
            assert request.can_hand_over
            prefill, decode = present(answer.prefill), present(answer.decode)
            assert prefill in live[decode].links
            assert self.now >= self.suspects.get((prefill, decode), self.now)

    def check_refusal(self, request: PlacementRequest) -> None:
        usable = [r.pool for w, r in self.live().items() if w not in request.excluded]
        match request.path:
            case None:
                assert not usable
            case Path.DECODE:
                assert Pool.DECODE not in usable
            case Path.PREFILL:
                assert Pool.PREFILL not in usable

    def live(self) -> dict[WorkerId, WorkerReport]:
        return {w: report for w, (report, at) in self.reports.items() if self.now - at <= REPORT_TIMEOUT_S}

    @invariant()
    def state_is_valid(self) -> None:
        self.state.validate()

    @invariant()
    def those_without_an_answer_wait(self) -> None:
        assert self.state.num_waiting == len(self.waiting)
        assert {queued.request_id for queued in self.state.queued(self.now)} == set(self.waiting)

    @invariant()
    def nothing_is_negative(self) -> None:
        for worker in self.state.workers.by_id.values():
            running = worker.running
            assert min(worker.kv_reserved, worker.inbound_prompt, running.num_unknown) >= 0
            assert (
                min(worker.prompts.seconds(self.now), running.context_tokens(self.now), running.step_s(self.now)) >= 0
            )

    @invariant()
    def view_is_what_the_reports_say(self) -> None:
        live = self.live()
        view = {w.worker: (w.pool, set(w.links)) for w in self.state.view(self.now).workers}
        assert view == {w: (report.pool, report.links.keys() & live.keys()) for w, report in live.items()}

    @invariant()
    def charges_are_the_open_placements(self) -> None:
        charged = Counter(w for p in self.charges.values() for w in (p.prefill, p.decode) if w)
        assert load(self.state, self.now) == {w: charged[w] for w in self.live() if charged[w]}

    @invariant()
    def restarted_scheduler_knows_the_same_workers_from_their_reports(self) -> None:
        restarted = RouterState()
        for report, _ in self.reports.values():
            if report.worker in self.live():
                restarted.handle(report, self.now)
        seen = {w.worker: w.links for w in restarted.view(self.now).workers}
        assert seen == {w.worker: w.links for w in self.state.view(self.now).workers}


TestRouterState = RouterStateMachine.TestCase
