import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from cluster.errors import (
    ClientTooSlow,
    ConstraintFailed,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    PrefillFailed,
    ServingError,
    WorkerBusy,
    WorkerUnreachable,
)
from cluster.messages.generation import PromptTokenSources, TokenDelta
from cluster.messages.ids import Outcome, Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Pinned, Rejection
from cluster.messages.scheduler_events import FirstToken, PrefillDone, RequestClosed
from cluster.slo import SloConfig
from router.session.session import PROBE_TENANT, Session
from tests.expected import of_kind, present
from tests.unit.factories import a_request
from tests.unit.fake_ports import BLOCK_HASHES, SERVED, FakeCluster, FakeDecode, FakePrefill, FakeScheduler, loop_rounds

PAIR, ALONE, ON_PREFILL = Path.PREFILL_DECODE, Path.DECODE, Path.PREFILL


def gone(worker: str) -> dict[str, Exception]:
    return {worker: WorkerUnreachable(f"worker {worker} is unreachable", worker)}


def busy(worker: str) -> dict[str, Exception]:
    return {worker: WorkerBusy(f"worker {worker} takes no more requests", worker)}


def refused(worker: str) -> dict[str, Exception]:
    return {worker: PrefillFailed("no usable handoff", worker)}


async def read(session: Session, into: list[TokenDelta] | None = None) -> list[TokenDelta]:
    deltas = [] if into is None else into
    async with aclosing(session.run()) as stream:
        async for delta in stream:
            deltas.append(delta)
    return deltas


def tokens(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def cancelled(task: asyncio.Task[list[TokenDelta]]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


LADDER = {
    "nothing fails": (FakePrefill, FakeDecode, [PAIR], []),
    "a prefill worker is gone: the other one": (lambda: FakePrefill(gone("p0")), FakeDecode, [PAIR, PAIR], ["p0"]),
    "a prefill fails: the other one": (lambda: FakePrefill(refused("p0")), FakeDecode, [PAIR, PAIR], []),
    "a prefill worker is busy: the other one": (lambda: FakePrefill(busy("p0")), FakeDecode, [PAIR, PAIR], []),
    "a decode worker is busy: the other one": (FakePrefill, lambda: FakeDecode(busy("d0")), [PAIR, PAIR], []),
    "all prefill workers are gone: path D": (
        lambda: FakePrefill(gone("p0") | gone("p1")),
        FakeDecode,
        [PAIR, PAIR, ALONE],
        ["p0", "p1"],
    ),
    "a decode worker is gone: the other one": (FakePrefill, lambda: FakeDecode(gone("d0")), [PAIR, PAIR], ["d0"]),
    "all decode workers are gone: path P": (
        FakePrefill,
        lambda: FakeDecode(gone("d0") | gone("d1")),
        [PAIR, PAIR, ON_PREFILL],
        ["d0", "d1"],
    ),
    "a decode engine errs: the other one": (FakePrefill, lambda: FakeDecode(error_on=["d0"]), [PAIR, PAIR], []),
    "prefill pool and a decode worker are gone": (
        lambda: FakePrefill(gone("p0") | gone("p1")),
        lambda: FakeDecode(gone("d0") | gone("d1")),
        None,
        None,
    ),
}


@pytest.mark.parametrize(("prefill", "decode", "paths", "lost"), LADDER.values(), ids=LADDER.keys())
async def test_failure_before_the_first_token_is_tried_elsewhere(
    prefill: Callable[[], FakePrefill],
    decode: Callable[[], FakeDecode],
    paths: list[Path] | None,
    lost: list[str] | None,
) -> None:
    cluster = FakeCluster(prefill=prefill(), decode=decode())
    session = cluster.session(a_request())
    if paths is None:
        with pytest.raises(Overloaded):
            await read(session)
    else:
        assert tokens(await read(session)) == SERVED
        assert (cluster.scheduler.paths, cluster.scheduler.lost) == (paths, lost)
        assert present(session.placement).path == paths[-1]
    cluster.check_settled()


async def test_served_request_is_closed_with_its_receipt() -> None:
    cluster = FakeCluster()
    await read(cluster.session(a_request(prompt_token_ids=[1, 2]), slo_class=SloClass.BATCH, http_request="of-client"))
    (receipt,) = cluster.observer.receipts
    assert receipt.http_request == "of-client"
    assert (receipt.path, receipt.placement, receipt.outcome) == (PAIR, cluster.scheduler.answers[0], Outcome.FINISHED)
    assert (receipt.num_prompt_tokens, receipt.num_output_tokens, receipt.num_attempts) == (2, 3, 1)
    assert receipt.prefill_sources == PromptTokenSources(3, 1, 0)
    assert (receipt.sources, receipt.slo_class) == (PromptTokenSources(0, 0, 4), SloClass.BATCH)


async def test_scheduler_hears_when_the_prompt_is_computed_and_when_the_request_decodes() -> None:
    cluster = FakeCluster()
    cluster.decode.start_gate.hold()
    task = asyncio.create_task(read(cluster.session(a_request())))
    await cluster.decode.start_gate.reached.wait()
    assert cluster.scheduler.told == [PrefillDone(request_id=RequestId("r"))]
    cluster.decode.start_gate.open()
    await task
    assert cluster.scheduler.told[:2] == [PrefillDone(request_id=RequestId("r")), FirstToken(request_id=RequestId("r"))]


async def test_request_of_one_worker_has_a_first_token_and_no_prefill_of_its_own() -> None:
    cluster = FakeCluster()
    await read(cluster.session(a_request(), ALONE))
    assert [type(event) for event in cluster.scheduler.told] == [FirstToken, RequestClosed]


async def test_scheduler_hears_how_long_a_request_took() -> None:
    now = asyncio.get_running_loop().time()
    cluster = FakeCluster()
    await read(cluster.session(a_request(), arrived_at=now - 5.0))
    closed = of_kind(RequestClosed, cluster.scheduler.told[-1])
    assert closed.num_output_tokens == len(SERVED)
    assert closed.ttft_s == pytest.approx(5.0, abs=1.0)
    assert 0.0 <= present(closed.tpot_s) < 1.0
    (receipt,) = cluster.observer.receipts
    assert (receipt.ttft_s, receipt.tpot_s) == (closed.ttft_s, closed.tpot_s)


async def test_request_that_was_cut_off_says_nothing_of_how_long_answers_are() -> None:
    cluster = FakeCluster()
    stream = cluster.session(a_request()).run()
    await anext(stream)
    await stream.aclose()
    closed = of_kind(RequestClosed, cluster.scheduler.told[-1])
    assert (closed.num_output_tokens, closed.tpot_s) == (None, None)
    assert closed.ttft_s is not None


async def test_placement_is_told_what_the_request_is_to_be_served_like() -> None:
    cluster = FakeCluster()
    now = asyncio.get_running_loop().time()
    request = a_request(num_sequences=2, max_output_tokens=7, is_resumable=True)
    terms: dict[str, Any] = {"slo_class": SloClass.INTERACTIVE, "ttft_s": 0.3, "tpot_s": 0.02, "arrived_at": now - 2.0}
    await read(cluster.session(request, **terms))
    (asked,) = cluster.scheduler.requests
    assert (asked.num_sequences, asked.max_output_tokens, asked.num_output_tokens) == (2, 7, 0)
    assert (asked.slo_class, asked.ttft_s, asked.tpot_s) == (SloClass.INTERACTIVE, 0.3, 0.02)
    assert asked.has_early_token
    assert asked.age_s == pytest.approx(2.0, abs=1.0)


async def test_decode_worker_pulls_what_the_prefill_worker_granted() -> None:
    cluster = FakeCluster()
    await read(cluster.session(a_request()))
    assert cluster.decode.given == [("d0", cluster.prefill.granted[0])]
    assert cluster.decode.pulled == cluster.prefill.granted


async def test_prompt_that_was_pulled_counts_as_the_prefill_worker_found_it() -> None:
    deltas = await read(FakeCluster().session(a_request()))
    assert deltas[0].prompt_sources == PromptTokenSources(computed=3, local=1, pulled=0)


async def test_forced_path_is_asked_for() -> None:
    cluster = FakeCluster()
    assert tokens(await read(cluster.session(a_request(), ALONE))) == SERVED
    assert (cluster.scheduler.requests[0].path, cluster.prefill.called) == (ALONE, [])


@pytest.mark.parametrize("fields", [{"num_sequences": 2}, {"needs_prompt_logprobs": True}], ids=str)
async def test_request_that_cannot_be_handed_over_runs_on_a_decode_worker(fields: dict[str, Any]) -> None:
    cluster = FakeCluster()
    await read(cluster.session(a_request(**fields)))
    assert (cluster.scheduler.paths, cluster.prefill.called) == ([ALONE], [])
    cluster.check_settled()


async def test_worker_that_failed_is_excluded_from_the_next_placement() -> None:
    cluster = FakeCluster(prefill=FakePrefill(refused("p0") | refused("p1")))
    await read(cluster.session(a_request()))
    assert [request.excluded for request in cluster.scheduler.requests] == [set(), {"p0"}, {"p0", "p1"}]


async def test_probe_stays_on_its_worker_and_path_when_the_worker_fails() -> None:
    cluster = FakeCluster(decode=FakeDecode(error_on=["d0"]))
    pinned = Pinned(None, WorkerId("d0"))
    with suppress(ServingError):
        await read(cluster.session(a_request(cache_salt="salt-of-one-probe"), path=Path.DECODE, pinned=pinned))
    asked = cluster.scheduler.requests
    assert len(asked) > 1
    assert all((request.path, request.pinned) == (Path.DECODE, pinned) for request in asked)
    assert {request.tenant for request in asked} == {PROBE_TENANT}


async def test_decode_worker_lost_after_the_first_token_ends_the_stream() -> None:
    cluster = FakeCluster(decode=FakeDecode(fails_after=gone("d0")))
    deltas: list[TokenDelta] = []
    with pytest.raises(WorkerUnreachable):
        await read(cluster.session(a_request()), deltas)
    assert (tokens(deltas), cluster.scheduler.paths, cluster.scheduler.lost) == ([10], [PAIR], ["d0"])
    assert cluster.observer.receipts[0].outcome == Outcome.FAILED
    cluster.check_settled()


async def test_engine_error_reaches_the_caller_once_no_worker_is_left() -> None:
    cluster = FakeCluster(FakeScheduler(num_prefill=1, num_decode=1), decode=FakeDecode(error_on=["d0", "p0"]))
    with pytest.raises(Overloaded, match="no worker"):
        await read(cluster.session(a_request()))
    cluster.check_settled()


async def test_engine_error_after_the_first_token_ends_the_stream() -> None:
    failure: dict[str, Exception] = {"d0": GenerationFailed("the decode engine failed on this request", "d0")}
    cluster = FakeCluster(decode=FakeDecode(fails_after=failure))
    with pytest.raises(GenerationFailed):
        await read(cluster.session(a_request()))
    assert cluster.scheduler.lost == []
    cluster.check_settled()


async def test_rejected_request_is_overloaded_and_says_when_to_retry() -> None:
    cluster = FakeCluster(FakeScheduler(num_prefill=0, num_decode=0))
    with pytest.raises(Overloaded) as refusal:
        await read(cluster.session(a_request()))
    assert refusal.value.retry_after_s > 0
    (receipt,) = cluster.observer.receipts
    assert (receipt.path, receipt.outcome) == (None, Outcome.REJECTED)
    assert receipt.rejection is not None and receipt.rejection.why in str(refusal.value)
    cluster.check_settled()


@pytest.mark.parametrize(("is_overload", "status"), [(True, 429), (False, 503)])
async def test_refusal_says_whether_the_load_is_the_reason(is_overload: bool, status: int) -> None:
    cluster = FakeCluster()
    cluster.scheduler.refusal = Rejection(retry_after_s=7.5, why="a long queue", is_overload=is_overload)
    with pytest.raises(Overloaded, match="a long queue") as refusal:
        await read(cluster.session(a_request()))
    assert (refusal.value.http_status, refusal.value.retry_after_s) == (status, 7.5)
    cluster.check_settled()


async def test_request_that_the_engine_refuses_is_not_tried_elsewhere() -> None:
    cluster = FakeCluster(prefill=FakePrefill({"p0": InvalidRequest("the prompt is too long")}))
    with pytest.raises(InvalidRequest):
        await read(cluster.session(a_request()))
    assert cluster.prefill.called == ["p0"]
    assert not cluster.observer.receipts[0].is_owed, "no prompt was computed"
    cluster.check_settled()


async def test_request_that_the_decode_worker_refuses_owes_the_prompt_that_was_computed() -> None:
    cluster = FakeCluster(decode=FakeDecode(fails_before={"d0": InvalidRequest("no")}))
    with pytest.raises(InvalidRequest):
        await read(cluster.session(a_request()))
    assert (cluster.observer.receipts[0].outcome, cluster.observer.receipts[0].is_owed) == (Outcome.FAILED, True)


@pytest.mark.parametrize("fails", ["fails_before", "fails_after"])
async def test_answer_that_cannot_be_held_to_its_schema_is_not_tried_elsewhere(fails: str) -> None:
    failing: dict[str, Any] = {fails: {"d0": ConstraintFailed("too slow"), "d1": AssertionError()}}
    cluster = FakeCluster(decode=FakeDecode(**failing))
    with pytest.raises(ConstraintFailed):
        await read(cluster.session(a_request()))
    assert cluster.scheduler.lost == []
    assert cluster.observer.receipts[0].is_owed
    cluster.check_settled()


async def test_client_that_leaves_while_queued_is_closed_without_a_placement() -> None:
    cluster = FakeCluster()
    cluster.scheduler.gate.hold()
    task = asyncio.create_task(read(cluster.session(a_request())))
    await cluster.scheduler.gate.reached.wait()
    await cancelled(task)
    assert [(r.path, r.outcome) for r in cluster.observer.receipts] == [(None, Outcome.ABORTED)]
    assert cluster.observer.receipts[0].unplaced_slo == SloConfig().of(SloClass.STANDARD).resolve(0.0)
    cluster.check_settled()


async def test_client_that_leaves_during_prefill_cancels_it() -> None:
    cluster = FakeCluster()
    cluster.prefill.gate.hold()
    task = asyncio.create_task(read(cluster.session(a_request())))
    await cluster.prefill.gate.reached.wait()
    await cancelled(task)
    assert (cluster.prefill.cancelled, cluster.decode.given) == (["p0"], [])
    assert cluster.observer.receipts[0].outcome == Outcome.ABORTED
    cluster.check_settled()


@pytest.mark.parametrize("moment", ["the answer is on its way", "the decode worker has not pulled"])
async def test_client_that_leaves_between_prefill_and_decode_gives_the_handoff_back(moment: str) -> None:
    cluster = FakeCluster()
    gate = cluster.prefill.answer_gate if moment == "the answer is on its way" else cluster.decode.start_gate
    gate.hold()
    task = asyncio.create_task(read(cluster.session(a_request())))
    await gate.reached.wait()
    await cancelled(task)
    assert len(cluster.prefill.granted) == 1
    assert cluster.prefill.withdrawn == [("p0", "r")]
    cluster.check_settled()


async def test_client_that_leaves_mid_stream_ends_the_generation() -> None:
    cluster = FakeCluster()
    cluster.decode.gate.hold()
    task = asyncio.create_task(read(cluster.session(a_request())))
    await cluster.decode.gate.reached.wait()
    await cancelled(task)
    assert (cluster.decode.num_ended, cluster.observer.receipts[0].num_output_tokens) == (1, 1)
    cluster.check_settled()


async def test_consumer_that_closes_the_stream_ends_the_generation() -> None:
    cluster = FakeCluster(decode=FakeDecode(delay_rounds=5))
    stream = cluster.session(a_request()).run()
    assert tokens([await anext(stream)]) == [10]
    await stream.aclose()
    assert (cluster.decode.num_ended, cluster.observer.receipts[0].outcome) == (1, Outcome.ABORTED)
    cluster.check_settled()


async def test_client_that_reads_too_slowly_is_cut_off_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(decode=FakeDecode(fails_after={"d0": ClientTooSlow("the client lags 9 tokens behind")}))
    with pytest.raises(ClientTooSlow):
        await read(cluster.session(a_request()))
    assert cluster.observer.receipts[0].outcome is Outcome.ABORTED
    assert caplog.messages == ["request r is cut off: the client lags 9 tokens behind"]


async def test_client_that_leaves_twice_is_still_closed_once() -> None:
    cluster = FakeCluster()
    cluster.decode.gate.hold()
    cluster.scheduler.delay_rounds = 5
    task = asyncio.create_task(read(cluster.session(a_request())))
    await cluster.decode.gate.reached.wait()
    task.cancel()
    await loop_rounds(2)
    await cancelled(task)
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    cluster.check_settled()


async def test_client_that_leaves_while_its_placement_is_on_the_way_is_charged_no_more() -> None:
    cluster = FakeCluster()
    cluster.scheduler.answer_gate.hold()
    task = asyncio.create_task(read(cluster.session(a_request())))
    await cluster.scheduler.answer_gate.reached.wait()
    task.cancel()
    cluster.scheduler.answer_gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task
    cluster.check_settled()


async def test_prefill_that_fails_unexpectedly_is_charged_no_more() -> None:
    cluster = FakeCluster(prefill=FakePrefill({"p0": RuntimeError("a bug")}))
    with pytest.raises(RuntimeError, match="a bug"):
        await read(cluster.session(a_request()))
    cluster.check_settled()


async def test_request_without_a_token_in_time_is_refused() -> None:
    cluster = FakeCluster()
    cluster.prefill.gate.hold()
    with pytest.raises(Overloaded, match="in time") as refusal:
        await read(cluster.session(a_request(), first_token_timeout_s=0.01))
    assert refusal.value.retry_after_s > 0
    assert cluster.prefill.cancelled == ["p0"]
    assert cluster.observer.receipts[0].outcome == Outcome.REJECTED
    cluster.check_settled()


async def test_deadline_of_the_first_token_is_none_of_the_next_ones() -> None:
    cluster = FakeCluster()
    cluster.decode.gate.hold()
    deltas: list[TokenDelta] = []
    task = asyncio.create_task(read(cluster.session(a_request(), first_token_timeout_s=0.01), deltas))
    await cluster.decode.gate.reached.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 0.03)
    cluster.decode.gate.open()
    assert tokens(await task) == SERVED


async def test_scheduler_is_told_whose_prompt_it_is_and_which_blocks_it_has() -> None:
    cluster = FakeCluster()
    await read(cluster.session(a_request(cache_salt="tenant")))
    (placed,) = cluster.scheduler.requests
    assert (placed.tenant, placed.block_hashes) == ("tenant", BLOCK_HASHES)


async def test_receipt_says_how_long_the_scheduler_kept_the_request_waiting() -> None:
    cluster = FakeCluster()
    cluster.scheduler.answer_gate.hold()
    reading = asyncio.create_task(read(cluster.session(a_request())))
    await cluster.scheduler.answer_gate.reached.wait()
    held_at = asyncio.get_running_loop().time()
    await asyncio.sleep(0.02)
    cluster.scheduler.answer_gate.open()
    waited_s = asyncio.get_running_loop().time() - held_at
    await reading
    (receipt,) = cluster.observer.receipts
    assert waited_s <= receipt.queued_s <= receipt.duration_s
