"""What operators are told of the Scheduler's state, as it comes about by reports and events."""

import msgspec
import pytest

from cluster.messages.ids import IngressId, Path, SloClass, WorkerId
from cluster.messages.operations import LinkDoubt, PathReason, SchedulerStatus, WorkerCondition, WorkerStatus
from cluster.messages.scheduler_events import HandoffChecked, HandoffVerdict, WorkerLost
from cluster.messages.views import WaitReason
from router.state import RouterState
from tests.unit.clusters import a_cluster, a_report, ask, put

P0, D0, D1 = WorkerId("p0"), WorkerId("d0"), WorkerId("d1")


def worker(status: SchedulerStatus, name: WorkerId) -> WorkerStatus:
    (found,) = [one for one in status.workers if one.worker == name]
    return found


def test_workers_are_told_with_their_load() -> None:
    state = a_cluster(1, 1)
    state.status.begin(7, 0.0)
    put(state, ask("r", 4000), 0.0)
    busy = a_report("d0", {"p0": None}, num_running=2, num_waiting=3, kv_cache_usage=0.5, num_leases=4, num_open=9)
    state.handle(busy, 0.5)
    status = state.status.read(1.0)
    assert (status.epoch, status.up_s, status.num_open) == (7, 1.0, 1)
    told = worker(status, D0)
    assert (told.num_open, told.num_running, told.num_waiting, told.num_leases) == (9, 2, 3, 4)
    assert (told.kv_usage, told.report_age_s, told.num_links) == (0.5, 0.5, 1)
    assert worker(status, P0).num_links == 1
    assert status.num_unproved == 0


def test_conditions_of_workers() -> None:
    state = a_cluster(0, 5)
    names = [WorkerId(f"d{number}") for number in range(5)]
    state.workers.drain([names[1]])
    state.workers.retire([names[2]], 0.0)
    state.disconnected(names[3])
    for name in names[:3]:
        state.handle(a_report(name), 4.0)
    told = {one.worker: one.condition for one in state.status.read(4.1).workers}
    assert told == dict(
        zip(
            names,
            [
                WorkerCondition.READY,
                WorkerCondition.DRAINING,
                WorkerCondition.RETIRING,
                WorkerCondition.SUSPECTED,
                WorkerCondition.STALE,
            ],
            strict=True,
        )
    )


def test_worker_in_quarantine_is_told_with_the_reason() -> None:
    state = a_cluster(0, 4)
    names = [WorkerId(f"d{number}") for number in range(4)]
    state.workers.drain([names[1]])
    state.disconnected(names[2])
    state.quarantined.told(dict.fromkeys(names[:3], "answers to water differ"), 0.0)
    told = {one.worker: (one.condition, one.wrong_answers) for one in state.status.read(0.1).workers}
    assert told == {
        names[0]: (WorkerCondition.QUARANTINED, "answers to water differ"),
        names[1]: (WorkerCondition.DRAINING, "answers to water differ"),
        names[2]: (WorkerCondition.SUSPECTED, "answers to water differ"),
        names[3]: (WorkerCondition.READY, None),
    }
    state.quarantined.told({}, 0.2)
    assert worker(state.status.read(0.3), names[0]).condition is WorkerCondition.READY


def test_last_workers_of_a_pool_get_requests_in_spite_of_a_quarantine() -> None:
    state = a_cluster(0, 1)
    state.quarantined.told({D0: "answers to water differ"}, 0.0)
    told = worker(state.status.read(0.1), D0)
    assert (told.condition, told.wrong_answers) == (WorkerCondition.READY, "answers to water differ")


def test_requests_wait_for_the_sake_of_others_though_workers_have_places() -> None:
    state = a_cluster(1, 1)
    for number in range(200):
        state.place(ask(f"r{number}", 8000), 0.0)
    status = state.status.read(0.1)
    assert sum(status.wait_reasons.values()) == min(50, sum(status.waiting.values())) > 0
    assert {*status.wait_reasons} <= {WaitReason.HARM, WaitReason.LATE}
    assert all(told.num_placed < told.max_requests for told in status.workers)


def test_worker_that_an_ingress_cannot_reach_is_held() -> None:
    state = a_cluster(0, 1)
    state.handle(WorkerLost(worker=D0), 0.0, IngressId("one"))
    told = worker(state.status.read(0.25), D0)
    assert (told.num_holds, told.hold_s) == (1, 0.75)


def test_unproved_links_are_told_with_the_error_of_the_decode_worker() -> None:
    state = a_cluster(2, 1, now=0.0)
    report = a_report("d0", {"p1": None})
    (untried,) = [link for link in a_cluster_without_links(state).unproved if link.prefill == "p0"]
    assert untried.doubt is LinkDoubt.NEVER_TRIED
    failed = msgspec.structs.replace(report, link_failures={P0: "it took too long"})
    state.handle(failed, 0.2)
    (link,) = state.status.read(0.2).unproved
    assert (link.prefill, link.decode, link.doubt, link.error) == (P0, D0, LinkDoubt.FAILED, "it took too long")


def a_cluster_without_links(state: RouterState) -> SchedulerStatus:
    """The status after a decode worker has told that it has lost its links."""
    fresh = RouterState()
    for name in ("p0", "p1", "d0"):
        fresh.handle(a_report(name), 0.0)
    assert state.status.read(0.0).num_unproved == 0
    return fresh.status.read(0.0)


def test_link_that_was_proved_is_doubtful_and_then_probed() -> None:
    state = a_cluster(1, 1)
    lost = a_report("d0")
    state.handle(lost, 0.2)
    assert [link.doubt for link in state.status.read(0.2).unproved] == [LinkDoubt.DOUBTFUL]
    state.reply_to(lost, 0.3)
    assert [link.doubt for link in state.status.read(0.3).unproved] == [LinkDoubt.PROBING]


def test_distrusted_pairs_are_told() -> None:
    state = a_cluster(1, 1)
    wrong = HandoffChecked(prefill=P0, decode=D0, verdict=HandoffVerdict.COPY_WRONG, distance=9.0, num_strikes=1)
    state.handle(wrong, 0.0)
    assert [(one.num_strikes, one.barred_s) for one in state.status.read(0.0).distrusted] == [(1, 0.0)]
    state.handle(msgspec.structs.replace(wrong, num_strikes=2), 1.0)
    (pair,) = state.status.read(2.0).distrusted
    assert (pair.prefill, pair.decode, pair.barred_s) == (P0, D0, 599.0)


@pytest.mark.parametrize(
    ("num_prefill", "num_decode", "fields", "reason"),
    [
        (1, 1, {"can_hand_over": False}, PathReason.NOT_POSSIBLE),
        (1, 1, {"max_output_tokens": 1}, PathReason.ONE_TOKEN),
        (1, 1, {"path": Path.DECODE}, PathReason.ASKED),
        (0, 1, {}, PathReason.NO_PREFILL_WORKER),
        (1, 0, {}, PathReason.NO_DECODE_WORKER),
    ],
)
def test_reasons_of_paths(num_prefill: int, num_decode: int, fields: dict[str, object], reason: PathReason) -> None:
    state = a_cluster(num_prefill, num_decode)
    put(state, ask("r", 2000, **fields), 0.0)
    (count,) = state.status.read(0.0).paths
    assert (count.reason, count.num, count.mean_prompt_tokens, count.mean_new_tokens) == (reason, 1, 2000.0, 2000.0)


def test_unproved_link_is_the_reason_of_a_whole_request() -> None:
    state = RouterState()
    for name in ("p0", "d0"):
        state.handle(a_report(name), 0.0)
    put(state, ask("r", 2000), 0.0)
    assert [count.reason for count in state.status.read(0.0).paths] == [PathReason.NOT_PROVED]


def test_distrusted_pair_is_the_reason_of_a_whole_request() -> None:
    state = a_cluster(1, 1)
    wrong = HandoffChecked(prefill=P0, decode=D0, verdict=HandoffVerdict.COPY_WRONG, distance=9.0, num_strikes=2)
    state.handle(wrong, 0.0)
    put(state, ask("r", 2000), 0.0)
    assert [count.reason for count in state.status.read(0.0).paths] == [PathReason.DISTRUSTED]


def test_handoffs_and_dearer_ones_are_counted() -> None:
    """One of both, whichever the prices say: a handoff was priced."""
    state = a_cluster(1, 1, is_plain=True)
    for number in range(4):
        put(state, ask(f"r{number}", 8000), 0.0)
    counts = state.status.read(0.0).paths
    assert sum(count.num for count in counts) == 4
    assert {count.reason for count in counts} <= {
        PathReason.HANDED_OVER,
        PathReason.DEARER,
        PathReason.DECODES_ITSELF,
    }


def test_waiting_requests_are_counted_by_class() -> None:
    state = RouterState()
    state.place(ask("a", 100, slo_class=SloClass.BATCH), 0.0)
    state.place(ask("b", 100, slo_class=SloClass.INTERACTIVE), 0.0)
    status = state.status.read(2.0)
    assert status.waiting == {SloClass.INTERACTIVE: 1, SloClass.STANDARD: 0, SloClass.BATCH: 1}
    assert status.oldest_wait_s == 2.0
