"""Which workers live, are stale, full or lost, by their reports alone."""

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.messages.ids import Path, Pool, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from cluster.messages.placement import Placement, Slo
from cluster.messages.reports import WorkerLoad, WorkerReport
from router.load.charge import Charge, Work
from router.load.live_workers import REPORT_TIMEOUT_S, SORTED_AGE_S, LiveWorkers
from router.prediction.output_lengths import LengthHistogram
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report

PREFILLS, DECODES = [WorkerId("p0"), WorkerId("p1")], [WorkerId("d0"), WorkerId("d1")]
BLOCKS = [b"one", b"two"]


def report_of(worker: str, **load: int) -> WorkerReport:
    report = a_prefill_report(worker) if worker.startswith("p") else a_decode_report(worker, "p0 p1")
    return msgspec.structs.replace(report, max_requests=3, load=WorkerLoad(**load))


def report(workers: LiveWorkers, worker: str, now: float, **load: int) -> None:
    workers.add(report_of(worker), now)
    workers.reported(report_of(worker, **load), now)


def a_charge(request_id: str, worker: str, now: float) -> Charge:
    """Of a request on one decode worker."""
    placement = Placement(path=Path.DECODE, prefill=None, decode=WorkerId(worker), why="", slo=Slo(1.0, 0.05))
    return Charge(
        a_placement_request(request_id), placement, LengthHistogram(), Work(0.1, 0.1, 0.2), 10, now + 1.0, None, now
    )


def test_worker_is_added_by_its_first_report_alone() -> None:
    workers = LiveWorkers()
    assert workers.add(report_of("d0"), 0.0) is workers.by_id[WorkerId("d0")]
    assert workers.add(report_of("d0"), 0.0) is None


def test_silent_worker_is_forgotten_at_the_next_report_of_any_worker() -> None:
    workers = LiveWorkers()
    report(workers, "p0", 0.0)
    for seconds in range(int(REPORT_TIMEOUT_S) + 1):
        report(workers, "d0", float(seconds))
    assert set(workers.by_id) == {"p0", "d0"}
    report(workers, "d0", REPORT_TIMEOUT_S + 0.1)
    assert set(workers.by_id) == {"d0"}


def test_worker_that_falls_silent_is_lost_unless_it_drains_or_will_be_stopped() -> None:
    workers = LiveWorkers()
    for worker in ("p0", "d0", "d1", "d2"):
        report(workers, worker, 0.0)
    workers.drain([WorkerId("d1")])
    for seconds in range(int(REPORT_TIMEOUT_S) + 2):
        workers.retire([WorkerId("d2")], float(seconds))
        report(workers, "p0", float(seconds))
    assert set(workers.by_id) == {"p0"}
    assert workers.lost.take_new() == [(Pool.DECODE, "d0")]
    assert workers.lost.take_new() == []


def test_worker_that_leaves_is_not_lost() -> None:
    workers = LiveWorkers()
    report(workers, "d0", 0.0)
    workers.forget(WorkerId("d0"), 0.1)
    assert workers.lost.take_new() == []


def test_no_worker_is_forgotten_because_the_scheduler_stood_still() -> None:
    workers = LiveWorkers()
    for worker in ("p0", "d0", "d1"):
        report(workers, worker, 0.0)
    known = workers.by_id[WorkerId("d0")]
    later = 10 * REPORT_TIMEOUT_S
    assert workers.by_pool(later).is_empty, "what they say now is not read yet"
    report(workers, "d1", later)
    assert [worker.worker for worker in workers.by_pool(later).decodes] == ["d1"]
    report(workers, "d0", later)
    assert [worker.worker for worker in workers.by_pool(later).decodes] == ["d0", "d1"]
    assert workers.by_id[WorkerId("d0")] is known
    for seconds in range(int(REPORT_TIMEOUT_S) + 2):
        report(workers, "d1", later + seconds)
    assert set(workers.by_id) == {"d1"}, "the others have been silent since"
    workers.validate()


def test_silent_workers_are_forgotten_though_nobody_else_is_there_but_an_ingress_that_asks_seldom() -> None:
    workers = LiveWorkers()
    report(workers, "d0", 0.0)
    for turn in range(1, 10):
        workers.roster(0, 5.0 * turn)
    assert not workers.by_id


def test_workers_are_sorted_again_at_once_when_one_is_lost_or_comes_back() -> None:
    workers = LiveWorkers()
    report(workers, "d0", 0.0)
    assert [worker.worker for worker in workers.by_pool(0.0).decodes] == ["d0"]
    workers.lose(WorkerId("d0"))
    assert workers.by_pool(0.0).is_empty
    report(workers, "d0", 0.0)
    assert not workers.by_pool(0.0).is_empty


def test_workers_that_are_sorted_are_used_again_for_a_moment() -> None:
    workers = LiveWorkers()
    report(workers, "d0", 0.0)
    first = workers.by_pool(0.0)
    assert workers.by_pool(SORTED_AGE_S) is first
    assert workers.by_pool(SORTED_AGE_S + 0.01) is not first


def test_stale_workers_come_after_those_that_report() -> None:
    workers = LiveWorkers()
    report(workers, "d0", 0.0)
    report(workers, "d1", 5.0)
    by_pool = workers.by_pool(5.0)
    assert [worker.worker for worker in by_pool.decodes] == ["d1"]
    assert [worker.worker for worker in by_pool.stale_decodes] == ["d0"]
    assert by_pool.stale_share == 0.5


def test_unknown_requests_of_a_report_end_the_time_for_which_no_worker_can_be_full() -> None:
    workers = LiveWorkers()
    report(workers, "d0", 0.0)
    assert workers.by_pool(0.0).room_until == 3
    report(workers, "d0", 0.0, num_running=2)
    assert workers.by_pool(0.0).room_until == 0


def test_placed_prompt_is_expected_on_its_worker() -> None:
    workers = LiveWorkers()
    report(workers, "d0", 0.0)
    workers.placed(a_charge("r", "d0", 0.0), BLOCKS, 0.0)
    assert workers.index.longest(BLOCKS, 0.1).keys() == {"d0"}
    assert workers.num_placed == 1
    workers.forget(WorkerId("d0"), 0.1)
    assert workers.index.longest(BLOCKS, 0.1) == {}


def test_kv_events_of_an_unknown_worker_are_asked_for_again() -> None:
    workers = LiveWorkers()
    snapshot = KvEvents(WorkerId("d0"), 1, True, True, [KvChange(KvTier.GPU, True, BLOCKS)])
    assert workers.handle_kv_events(snapshot, 0.0)
    report(workers, "d0", 0.0)
    assert not workers.handle_kv_events(snapshot, 0.0)
    assert workers.index.longest(BLOCKS, 0.0).keys() == {"d0"}


class LiveWorkersMachine(RuleBasedStateMachine):
    """Any history of reports, losses, placements and silence, against the times of the last reports."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = LiveWorkers()
        self.now = 0.0
        self.reported_at: dict[str, float] = {}
        self.lost: set[str] = set()
        self.charges: list[Charge] = []

    @rule(worker=st.sampled_from(PREFILLS + DECODES), num_running=st.integers(0, 4))
    def report(self, worker: WorkerId, num_running: int) -> None:
        report(self.workers, worker, self.now, num_running=num_running)
        self.reported_at[worker] = self.now
        self.lost.discard(worker)

    @rule(worker=st.sampled_from(PREFILLS + DECODES))
    def lose(self, worker: WorkerId) -> None:
        self.workers.lose(worker)
        self.lost.add(worker)

    @rule(worker=st.sampled_from(PREFILLS + DECODES))
    def leave(self, worker: WorkerId) -> None:
        self.workers.forget(worker, self.now)
        self.reported_at.pop(worker, None)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 1.0, REPORT_TIMEOUT_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def place(self) -> None:
        """On the first decode worker that has room."""
        for state in self.workers.by_pool(self.now).decodes:
            if len(state.charges) < state.room:
                charge = a_charge(f"r{self.workers.num_placed}", state.worker, self.now)
                state.queue_prefill(charge, 0.1, self.now)
                state.expect(charge)
                self.workers.placed(charge, BLOCKS, self.now)
                self.charges.append(charge)
                return

    @rule()
    def end(self) -> None:
        if self.charges:
            charge = self.charges.pop()
            if state := self.workers.by_id.get(charge.placement.generating):
                state.release(charge, self.now)

    @invariant()
    def machine_is_valid(self) -> None:
        self.workers.validate()

    @invariant()
    def live_workers_are_those_with_a_recent_report(self) -> None:
        live = {w for w, at in self.reported_at.items() if self.now - at <= REPORT_TIMEOUT_S} - self.lost
        assert {view.worker for view in self.workers.view(self.now).workers} == live

    @invariant()
    def each_pool_has_its_own_workers(self) -> None:
        by_pool = self.workers.by_pool(self.now)
        assert all(worker.pool is Pool.PREFILL for worker in by_pool.prefills)
        assert all(worker.pool is Pool.DECODE for worker in by_pool.decodes)
        assert by_pool.is_empty == (not by_pool.prefills and not by_pool.decodes)


TestLiveWorkers = LiveWorkersMachine.TestCase
