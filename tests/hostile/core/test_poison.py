"""A request that ends the engine it runs on takes two engines at most, and nobody else's request for long."""

from time import thread_time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import EngineLost, RequestQuarantined, WorkerUnreachable
from cluster.messages.ids import Outcome, Path, RequestId, WorkerId
from cluster.messages.placement import Placement, Rejection
from cluster.messages.scheduler_events import EngineLostWith, RequestClosed, WorkerLeft
from router.quarantine.quarantine import (
    MANY,
    MAX_ENGINES_LOST,
    MAX_KEPT,
    QUARANTINE_S,
    SHORT_QUARANTINE_S,
    Quarantine,
)
from router.quarantine.request_digest import digest_of
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report, a_request
from tests.unit.fake_ports import BLOCK_HASHES, SERVED, FakeCluster, FakeDecode, FakeScheduler
from tests.unit.router.session.test_session import read, tokens

EVERY_DECODE = [f"d{index}" for index in range(50)]


def dies_on_every_engine(kind: type[WorkerUnreachable] = EngineLost) -> dict[str, Exception]:
    prefills = [f"p{index}" for index in range(10)]
    return {worker: kind(f"the engine of worker {worker} died", worker) for worker in EVERY_DECODE + prefills}


@pytest.mark.parametrize("is_resumable", [True, False])
async def test_one_request_takes_two_engines_of_fifty(is_resumable: bool) -> None:
    cluster = FakeCluster(FakeScheduler(num_decode=50), decode=FakeDecode(fails_before=dies_on_every_engine()))
    session = cluster.session(a_request(is_resumable=is_resumable))
    with pytest.raises(RequestQuarantined) as ended:
        await read(session)
    assert len(cluster.decode.given) == MAX_ENGINES_LOST
    assert (ended.value.http_status, ended.value.code) == (500, "request_quarantined")
    assert not hasattr(ended.value, "retry_after_s"), "it would be sent again"
    assert cluster.observer.receipts[0].outcome is Outcome.FAILED
    cluster.check_settled()


async def test_one_stream_takes_two_engines_of_fifty() -> None:
    """It has tokens of the first one."""
    decode = FakeDecode(fails_before={w: e for w, e in dies_on_every_engine().items() if w != "d0"})
    decode.fails_after = dies_on_every_engine()
    cluster = FakeCluster(FakeScheduler(num_prefill=0, num_decode=50), decode=decode)
    with pytest.raises(RequestQuarantined):
        await read(cluster.session(a_request(is_resumable=True)))
    assert len(cluster.decode.given) == MAX_ENGINES_LOST
    cluster.check_settled()


async def test_stream_outlives_two_engines_that_die_at_once() -> None:
    """It runs on the first one, and is placed on the second one before anybody knows that this one is dead, too: that
    is found out before the request is given to it.
    """
    was_dead = dies_on_every_engine(WorkerUnreachable)
    decode = FakeDecode(fails_before={"d2": was_dead["d2"]}, fails_after={"d0": dies_on_every_engine()["d0"]})
    cluster = FakeCluster(FakeScheduler(num_prefill=0, num_decode=3), decode=decode)
    assert tokens(await read(cluster.session(a_request(is_resumable=True)))) == SERVED
    assert [worker for worker, _ in decode.given] == ["d0", "d2", "d1"]
    assert [request.is_suspect for request in decode.requests] == [False, True, True]
    cluster.check_settled()


async def test_request_that_is_sent_again_reaches_no_engine() -> None:
    cluster = FakeCluster(FakeScheduler(num_decode=50), decode=FakeDecode(fails_before=dies_on_every_engine()))
    with pytest.raises(RequestQuarantined):
        await read(cluster.session(a_request()))
    again = FakeCluster(cluster.scheduler)
    with pytest.raises(RequestQuarantined):
        await read(again.session(a_request(request_id="again")))
    assert not again.decode.given and not again.prefill.called


async def test_same_prompt_of_another_tenant_is_served() -> None:
    cluster = FakeCluster(FakeScheduler(num_decode=50), decode=FakeDecode(fails_before=dies_on_every_engine()))
    with pytest.raises(RequestQuarantined):
        await read(cluster.session(a_request(cache_salt="one")))
    other = FakeCluster(cluster.scheduler)
    assert tokens(await read(other.session(a_request(request_id="other", cache_salt="two")))) == SERVED


async def test_workers_that_are_gone_before_the_request_comes_are_not_its_fault() -> None:
    """As when machines fail: nobody's request had them."""
    gone = {worker: error for worker, error in dies_on_every_engine(WorkerUnreachable).items() if worker != "d7"}
    cluster = FakeCluster(FakeScheduler(num_decode=8), decode=FakeDecode(fails_before=gone))
    assert tokens(await read(cluster.session(a_request()))) == SERVED


async def test_one_lost_engine_costs_a_request_nothing() -> None:
    lost: dict[str, Exception] = {"d0": EngineLost("the engine of worker d0 died", "d0")}
    cluster = FakeCluster(decode=FakeDecode(fails_before=lost))
    assert tokens(await read(cluster.session(a_request(is_resumable=True)))) == SERVED


# --- the Scheduler


def a_state(number: int) -> RouterState:
    state = RouterState()
    for index in range(number):
        state.handle(a_prefill_report(f"p{index}"), 0.0)
    for index in range(number):
        state.handle(a_decode_report(f"d{index}", " ".join(f"p{other}" for other in range(number))), 0.0)
    return state


def lost_with(digest: bytes, worker: str, num_engines_lost: int = MAX_ENGINES_LOST) -> EngineLostWith:
    return EngineLostWith(digest=digest, worker=WorkerId(worker), num_engines_lost=num_engines_lost)


def placed(state: RouterState, request_id: str, **fields: Any) -> Placement:
    answer = state.place(a_placement_request(request_id, **fields), 0.0)
    assert isinstance(answer, Placement)
    return answer


def is_quarantined(state: RouterState, request_id: str, now: float = 0.0) -> bool:
    answer = state.place(a_placement_request(request_id, digest=b"digest"), now)
    return isinstance(answer, Rejection) and answer.is_quarantined


def test_those_that_were_lost_together_do_not_meet_again() -> None:
    """So the next engine that the reason stops takes no other of them along."""
    state = a_state(50)
    suspects = [
        placed(state, f"r{number}", num_output_tokens=1, num_engines_lost=1, digest=b"%d" % number)
        for number in range(30)
    ]
    where = [worker for one in suspects for worker in {one.prefill, one.decode} - {None}]
    assert len(set(where)) == len(where)


def test_those_that_were_lost_together_share_workers_where_there_are_no_others() -> None:
    state = a_state(1)
    for number in range(10):
        placed(state, f"r{number}", num_output_tokens=1, num_engines_lost=1)
    state.validate()


def test_request_that_finishes_somewhere_leaves_quarantine() -> None:
    state = a_state(2)
    placed(state, "runs", digest=b"digest")
    state.handle(lost_with(b"digest", "d9"), 0.0)
    assert isinstance(state.place(a_placement_request("again", digest=b"digest"), 0.0), Rejection)
    state.handle(RequestClosed(request_id=RequestId("runs"), digest=b"digest", num_output_tokens=3), 0.0)
    assert placed(state, "and again", digest=b"digest").num_engines_lost == 0


def test_request_that_finishes_after_it_stopped_an_engine_is_not_cleared_by_that() -> None:
    """It may stop each prefill engine that it meets, and finish on a decode engine: sent again, it stops the next."""
    state = a_state(4)
    for number in (1, 2):
        assert not is_quarantined(state, f"r{number}")
        state.handle(lost_with(b"digest", f"d{number}", number), 0.0)
        closed = RequestClosed(
            request_id=RequestId(f"r{number}"), digest=b"digest", num_output_tokens=3, num_engines_lost=1
        )
        state.handle(closed, 0.0)
    assert is_quarantined(state, "r3")


async def test_session_says_how_many_engines_were_lost_with_it() -> None:
    cluster = FakeCluster(decode=FakeDecode(fails_before={"d0": dies_on_every_engine()["d0"]}))
    await read(cluster.session(a_request()))
    (closed,) = [event for event in cluster.scheduler.told if isinstance(event, RequestClosed)]
    assert (closed.num_engines_lost, closed.num_output_tokens is None, closed.is_harmless) == (1, False, False)


def test_quarantine_ends() -> None:
    state = a_state(2)
    state.handle(lost_with(b"digest", "d9"), 0.0)
    refused = state.place(a_placement_request("r", digest=b"digest"), QUARANTINE_S - 1.0)
    assert isinstance(refused, Rejection) and refused.is_quarantined
    placed_later = state.place(a_placement_request("r", digest=b"digest"), QUARANTINE_S)
    assert not isinstance(placed_later, Rejection)


def test_new_scheduler_that_is_told_late_of_a_loss_remembers_it_no_longer() -> None:
    state = a_state(2)
    state.handle(msgspec.structs.replace(lost_with(b"digest", "d9"), age_s=QUARANTINE_S - 10.0), 100.0)
    assert is_quarantined(state, "r")
    placed_later = state.place(a_placement_request("r", digest=b"digest"), 110.0)
    assert not isinstance(placed_later, Rejection)


def test_loss_of_another_session_counts() -> None:
    """A client that does not wait for the second engine and sends its request again."""
    state = a_state(4)
    placed(state, "first", digest=b"digest")
    state.handle(lost_with(b"digest", "d0", 1), 0.0)
    state.handle(RequestClosed(request_id=RequestId("first"), digest=b"digest"), 0.0)
    assert placed(state, "second", digest=b"digest").num_engines_lost == 1
    state.handle(lost_with(b"digest", "d1", 2), 0.0)
    assert is_quarantined(state, "third")


def test_client_that_leaves_before_its_engine_is_known_to_hang_is_counted() -> None:
    """It leaves after ten seconds, the hang is noticed after fifteen, and it comes again with each try."""
    state = a_state(4)
    for number, name in enumerate(["first", "second"]):
        now = 20.0 * number
        for worker in range(4):
            state.handle(a_prefill_report(f"p{worker}"), now)
            state.handle(a_decode_report(f"d{worker}", "p0 p1 p2 p3"), now)
        answer = state.place(a_placement_request(name, digest=b"digest", path=Path.DECODE), now)
        assert isinstance(answer, Placement) and answer.num_engines_lost == number
        state.handle(RequestClosed(request_id=RequestId(name), digest=b"digest"), now + 10.0)
        state.handle(WorkerLeft(worker=answer.generating, engine_silent_s=15.0), now + 15.0)
    assert is_quarantined(state, "third", 36.0)


@pytest.mark.parametrize(
    ("worker", "left_at", "silent_s"), [("d1", 9.0, 15.0), ("d0", 1.0, 2.0), ("d0", 9.0, None)], ids=str
)
def test_client_that_left_another_worker_or_long_before_or_a_well_one_is_not(
    worker: str, left_at: float, silent_s: float | None
) -> None:
    state = a_state(1)
    state.handle(a_decode_report("d1"), 0.0)
    excluded = frozenset([WorkerId("d1")])
    assert placed(state, "r", digest=b"digest", excluded=excluded, path=Path.DECODE).generating == "d0"
    state.handle(RequestClosed(request_id=RequestId("r"), digest=b"digest"), left_at)
    state.handle(WorkerLeft(worker=WorkerId(worker), engine_silent_s=silent_s), 10.0)
    state.handle(a_decode_report("d2"), 10.0)
    answer = state.place(a_placement_request("again", digest=b"digest"), 10.0)
    assert isinstance(answer, Placement) and answer.num_engines_lost == 0


def test_copies_that_were_lost_at_once_count_once() -> None:
    state = a_state(4)
    for number in range(4):
        assert placed(state, f"r{number}", digest=b"digest").num_engines_lost == 0
    for number in range(4):
        state.handle(lost_with(b"digest", f"d{number}", 1), 0.0)
    assert placed(state, "again", digest=b"digest").num_engines_lost == 1


def test_loss_that_is_told_twice_or_late_counts_once() -> None:
    state = a_state(4)
    for _ in range(3):
        state.handle(lost_with(b"digest", "d0", 1), 0.0)
    assert placed(state, "again", digest=b"digest").num_engines_lost == 1
    state.handle(lost_with(b"digest", "d1", 2), 0.0)
    state.handle(lost_with(b"digest", "d0", 1), 0.0)
    assert is_quarantined(state, "and again")


def test_copy_that_waits_is_not_placed_once_the_request_is_in_quarantine() -> None:
    """No worker lives yet, so that it waits for one."""
    state = RouterState()
    assert state.place(a_placement_request("waits", digest=b"digest"), 0.0) is None
    state.handle(lost_with(b"digest", "d9"), 0.0)
    [(waits, answer)] = state.decide(0.01)
    assert waits == "waits" and isinstance(answer, Rejection) and answer.is_quarantined


async def test_session_that_is_placed_after_a_loss_of_another_loses_one_engine() -> None:
    scheduler = FakeScheduler(num_decode=50)
    scheduler.tell(lost_with(digest_of(a_request(), BLOCK_HASHES), "gone", 1))
    cluster = FakeCluster(scheduler, decode=FakeDecode(fails_before=dies_on_every_engine()))
    with pytest.raises(RequestQuarantined):
        await read(cluster.session(a_request()))
    assert [request.is_suspect for request in cluster.decode.requests] == [True]


# --- the quarantine


def test_neighbours_of_the_reason_leave_quarantine_soon() -> None:
    quarantine = Quarantine()
    digests = [b"%d" % number for number in range(MANY)]
    for digest in digests:
        quarantine.lost(digest, WorkerId("d0"), MAX_ENGINES_LOST, 0.0)
    assert all(quarantine.holds(digest, SHORT_QUARANTINE_S - 1.0) for digest in digests)
    assert not any(quarantine.holds(digest, SHORT_QUARANTINE_S) for digest in digests)


@given(st.lists(st.tuples(st.binary(max_size=2), st.sampled_from("ab"), st.floats(0, 2000)), max_size=50))
def test_nobody_is_held_longer_than_said(added: list[tuple[bytes, str, float]]) -> None:
    quarantine = Quarantine()
    last: dict[bytes, float] = {}
    for digest, worker, now in sorted(added, key=lambda one: one[2]):
        quarantine.lost(digest, WorkerId(worker), MAX_ENGINES_LOST, now)
        last[digest] = now
        assert quarantine.holds(digest, now)
    end = max(last.values(), default=0.0) + QUARANTINE_S
    assert not any(quarantine.holds(digest, end) for digest in last)


@given(
    st.lists(
        st.tuples(st.binary(max_size=1), st.sampled_from("ab"), st.integers(1, 3), st.floats(0, 2000), st.booleans()),
        max_size=50,
    )
)
def test_quarantine_counts_each_request_once_whatever_happens(
    happened: list[tuple[bytes, str, int, float, bool]],
) -> None:
    quarantine = Quarantine()
    for digest, worker, number, now, is_cleared in happened:
        quarantine.lost(digest, WorkerId(worker), number, now)
        quarantine.validate()
        assert quarantine.num_lost(digest, now) >= number
        if is_cleared:
            quarantine.clear(digest)
            quarantine.validate()
            assert not quarantine.num_lost(digest, now)


def test_quarantine_is_bounded() -> None:
    quarantine = Quarantine()
    for number in range(2 * MAX_KEPT):
        num_engines_lost = 1 if number % 16 else MAX_ENGINES_LOST
        quarantine.lost(b"%d" % number, WorkerId(f"w{number}"), num_engines_lost, 0.0)
    quarantine.validate()
    assert len(quarantine) == MAX_KEPT


@pytest.mark.parametrize("num_workers", [1, MAX_KEPT])
def test_loss_costs_no_more_where_thousands_are_refused(num_workers: int) -> None:
    """Time of the CPU, where a pass over all that are refused for each loss takes a hundred times as long."""
    quarantine = Quarantine()
    for number in range(MAX_KEPT):
        quarantine.lost(b"%d" % number, WorkerId(f"w{number % num_workers}"), MAX_ENGINES_LOST, 0.0)
    began = thread_time()
    for number in range(MAX_KEPT, MAX_KEPT + 500):
        quarantine.lost(b"%d" % number, WorkerId(f"w{number % num_workers}"), MAX_ENGINES_LOST, 0.0)
    assert (thread_time() - began) / 500 < 200e-6


# --- the digest


@given(st.lists(st.integers(0, 200_000), max_size=40), st.binary(max_size=9), st.sampled_from([None, "one", "two"]))
def test_digest_is_of_what_an_engine_computes(token_ids: list[int], params: bytes, salt: str | None) -> None:
    fields: dict[str, Any] = {"prompt_token_ids": token_ids, "sampling_params": params, "cache_salt": salt}
    one = digest_of(a_request(request_id="one", **fields), [])
    assert one == digest_of(a_request(request_id="two", **fields), [])
    for changed in (
        {"prompt_token_ids": [*token_ids, 1]},
        {"sampling_params": params + b"."},
        {"cache_salt": "three"},
        {"num_sequences": 7},
    ):
        assert one != digest_of(a_request(request_id="one", **{**fields, **changed}), [])
    assert one != digest_of(a_request(request_id="one", **fields), [b"hash of a block"])
