"""A worker that counts fewer requests than are charged to it is asked which it has, and is believed."""

from typing import NoReturn

import msgspec
import pytest

from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.reports import WorkerLoad, WorkerReport
from cluster.messages.scheduler_events import FirstToken, PrefillDone, WorkerLeft
from router.load.charge import Charge
from router.load.charges import SETTLED_S
from router.load.request_audit import NUM_SHORT
from router.state import RouterState
from tests.unit.clusters import a_cluster, ask, ended, put
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report

REPORT_S = 0.25
LATER = SETTLED_S + 1.0


class Workers:
    """A prefill and a decode worker that report what a test says they have."""

    def __init__(self) -> None:
        self.state = RouterState(admits_all=True)
        self.now = 0.0
        self.have: dict[str, list[str]] = {"p0": [], "d0": []}
        self.num_asked = 0
        self._is_asked: dict[str, bool] = {}
        self.report(1)

    def place(self, request_id: str, path: Path) -> None:
        self.state.place(a_placement_request(request_id, path=path), self.now)

    def report(self, number: int = 1, counted: int | None = None) -> None:
        """`counted`: what both say, whatever they have."""
        for _ in range(number):
            self.now += REPORT_S
            for report in (a_prefill_report("p0"), a_decode_report("d0", "p0")):
                self._hear(report, counted)
            self.state.validate()

    def _hear(self, report: WorkerReport, counted: int | None) -> None:
        have = [RequestId(request_id) for request_id in self.have[report.worker]]
        report = msgspec.structs.replace(
            report,
            load=WorkerLoad(num_open=len(have) if counted is None else counted),
            requests=have if self._is_asked.get(report.worker) else None,
        )
        self.state.handle(report, self.now)
        self._is_asked[report.worker] = self.state.reply_to(report, self.now).wants_requests
        self.num_asked += self._is_asked[report.worker]

    @property
    def charged(self) -> dict[str, int]:
        return {worker.worker: worker.num_placed for worker in self.state.view(self.now).workers}


@pytest.mark.parametrize("path", [Path.DECODE, Path.PREFILL, Path.PREFILL_DECODE])
def test_worker_that_comes_back_has_the_requests_that_are_still_open(path: Path) -> None:
    workers = Workers()
    for request_id in ("stays", "ends", "ends before"):
        workers.place(request_id, path)
    before = workers.charged
    ended(workers.state, "ends before", workers.now)
    for worker in before:
        workers.state.handle(WorkerLeft(worker=WorkerId(worker)), workers.now)
    ended(workers.state, "ends", workers.now)
    workers.state.validate()
    workers.report(counted=3)
    assert workers.charged == {worker: number // 3 for worker, number in before.items()}
    ended(workers.state, "stays", workers.now)
    assert workers.charged == {"p0": 0, "d0": 0}
    workers.state.validate()


def test_worker_that_comes_back_costs_the_same_however_many_requests_others_have() -> None:
    class Unwalkable(dict[RequestId, Charge]):
        def values(self) -> NoReturn:
            raise AssertionError("all open requests are looked at")

    workers = Workers()
    workers.place("r", Path.DECODE)
    charges = workers.state._charges
    charges._by_id = Unwalkable(charges._by_id)
    for worker in ("p0", "d0"):
        workers.state.handle(WorkerLeft(worker=WorkerId(worker)), workers.now)
    for report in (a_prefill_report("p0"), a_decode_report("d0", "p0")):
        workers.state.handle(report, workers.now)
    assert workers.charged == {"p0": 0, "d0": 1}


@pytest.mark.parametrize("path", [Path.DECODE, Path.PREFILL])
def test_charge_that_its_worker_denies_is_dropped(path: Path) -> None:
    workers = Workers()
    workers.place("r", path)
    workers.report(int(LATER / REPORT_S) + NUM_SHORT + 1)
    workers.report(int(LATER / REPORT_S))
    assert workers.charged == {"p0": 0, "d0": 0}
    assert workers.num_asked >= 1


def test_charge_of_a_request_that_its_worker_has_stays() -> None:
    workers = Workers()
    workers.place("r", Path.DECODE)
    workers.place("lost", Path.DECODE)
    workers.have["d0"] = ["r"]
    workers.report(int(3 * LATER / REPORT_S))
    assert workers.charged == {"p0": 0, "d0": 1}


def test_attempts_and_checks_of_a_request_speak_for_it() -> None:
    workers = Workers()
    for request_id in ("cmpl-a-0", "cmpl-b-0", "cmpl-c-0"):
        workers.place(request_id, Path.DECODE)
    workers.have["d0"] = ["cmpl-a-0-2", "cmpl-b-0-check"]
    workers.report(int(3 * LATER / REPORT_S))
    assert workers.charged == {"p0": 0, "d0": 2}


def test_worker_that_counts_as_many_as_are_due_is_not_asked() -> None:
    workers = Workers()
    workers.place("r", Path.DECODE)
    workers.have["d0"] = ["r"]
    workers.report(int(3 * LATER / REPORT_S))
    assert workers.num_asked == 0


def test_request_on_its_way_is_not_missed() -> None:
    workers = Workers()
    workers.place("r", Path.DECODE)
    workers.report(int(SETTLED_S / REPORT_S))
    assert (workers.num_asked, workers.charged) == (0, {"p0": 0, "d0": 1})


def test_one_short_count_is_no_reason_to_ask() -> None:
    workers = Workers()
    workers.place("r", Path.DECODE)
    workers.have["d0"] = ["r"]
    workers.report(int(LATER / REPORT_S))
    for _ in range(5):
        workers.report(NUM_SHORT - 1, counted=0)
        workers.report(1)
    assert (workers.num_asked, workers.charged) == (0, {"p0": 0, "d0": 1})


def test_each_stage_is_looked_for_on_its_own_worker() -> None:
    workers = Workers()
    workers.place("prefilling", Path.PREFILL_DECODE)
    workers.place("pulling", Path.PREFILL_DECODE)
    workers.place("decoding", Path.PREFILL_DECODE)
    workers.state.handle(PrefillDone(request_id=RequestId("pulling")), workers.now)
    workers.state.handle(FirstToken(request_id=RequestId("decoding")), workers.now)
    workers.have = {"p0": ["prefilling"], "d0": ["pulling", "decoding"]}
    workers.report(int(3 * LATER / REPORT_S))
    assert workers.charged == {"p0": 2, "d0": 3}
    workers.have = {"p0": [], "d0": ["prefilling"]}
    workers.report(int(3 * LATER / REPORT_S))
    assert workers.charged == {"p0": 0, "d0": 0}


def test_request_that_came_to_its_stage_after_the_question_is_not_denied_by_the_answer() -> None:
    workers = Workers()
    workers.place("lost", Path.DECODE)
    workers.report(int(LATER / REPORT_S))
    workers.place("new", Path.DECODE)
    workers.report(2 * NUM_SHORT)
    assert workers.charged == {"p0": 0, "d0": 1}


def test_worker_that_does_not_count_its_requests_denies_none() -> None:
    state = RouterState(admits_all=True)
    for now in (0.0, 100.0, 101.0, 102.0, 103.0, 104.0):
        state.handle(a_decode_report("d0", ""), now)
        if not now:
            state.place(a_placement_request("r"), now)
    assert not state.reply_to(a_decode_report("d0", ""), 104.0).wants_requests
    assert [worker.num_placed for worker in state.view(104.0).workers] == [1]


def test_prompts_of_clients_that_leave_at_once_are_no_demand() -> None:
    state = a_cluster(1, 1)
    before = put(state, ask("before", 8000, ttft_s=20.0), 0.0).predicted
    ended(state, "before", 0.0)
    for number in range(200):
        put(state, ask(f"r{number}", 4000, ttft_s=0.95), number / 100)
        ended(state, f"r{number}", number / 100 + 0.001)
    after = put(state, ask("after", 8000, ttft_s=20.0), 2.0).predicted
    assert before is not None and after is not None
    assert after.ttft_s < 1.1 * before.ttft_s
