"""Requests that may go on elsewhere: the first token from the prefill worker, and failures in mid-stream."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cluster.errors import GenerationFailed, WorkerUnreachable
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Outcome, Path
from tests.unit.factories import a_request
from tests.unit.fake_ports import SERVED, FakeCluster, FakeDecode, FakePrefill, FakeScheduler, loop_rounds
from tests.unit.router.session.test_session import cancelled, gone, read, tokens

PAIR, ALONE, ON_PREFILL = Path.PREFILL_DECODE, Path.DECODE, Path.PREFILL


def a_resumable(**fields: Any) -> GenerateRequest:
    return a_request(is_resumable=True, is_verifiable=True, **fields)


async def test_first_token_comes_from_the_prefill_worker_and_decode_goes_on_after_it() -> None:
    cluster = FakeCluster()
    cluster.decode.start_gate.hold()
    stream = cluster.session(a_resumable()).run()
    first = await anext(stream)
    assert (first.token_ids, first.prompt_sources) == ([10], PromptTokenSources(computed=3, local=1, pulled=0))
    cluster.decode.start_gate.open()
    rest = [delta async for delta in stream]
    assert tokens([first, *rest]) == SERVED
    assert [delta.prompt_sources for delta in rest] == [None, None]
    (request,) = cluster.decode.requests
    assert (request.prompt_token_ids, request.num_generated) == ([1, 2, 3, 4, 10], 1)
    assert cluster.decode.pulled == cluster.prefill.granted
    cluster.check_settled()


async def test_token_that_is_held_back_comes_with_the_decode_workers_first() -> None:
    cluster = FakeCluster()
    cluster.scheduler.holds_first_until_s = 60.0
    cluster.decode.start_gate.hold()
    deltas: list[TokenDelta] = []
    task = asyncio.create_task(read(cluster.session(a_resumable()), deltas))
    await cluster.decode.start_gate.reached.wait()
    await loop_rounds(10)
    assert deltas == []
    cluster.decode.start_gate.open()
    assert tokens(await task) == SERVED
    (receipt,) = cluster.observer.receipts
    assert receipt.num_output_tokens == len(SERVED)
    cluster.check_settled()


async def test_token_is_not_held_back_beyond_its_time() -> None:
    cluster = FakeCluster()
    cluster.scheduler.holds_first_until_s = 0.01
    cluster.decode.start_gate.hold()
    stream = cluster.session(a_resumable()).run()
    assert (await anext(stream)).token_ids == [10]
    cluster.decode.start_gate.open()
    assert tokens([delta async for delta in stream]) == SERVED[1:]
    cluster.check_settled()


async def test_decode_worker_that_fails_while_a_token_is_held_back_costs_no_token() -> None:
    cluster = FakeCluster(decode=FakeDecode(fails_before=gone("d0")))
    cluster.scheduler.holds_first_until_s = 60.0
    assert tokens(await read(cluster.session(a_resumable()))) == SERVED
    assert cluster.decode.requests[1].num_generated == 2
    cluster.check_settled()


async def test_client_that_leaves_while_its_first_token_is_held_back_ends_everything() -> None:
    cluster = FakeCluster()
    cluster.scheduler.holds_first_until_s = 60.0
    cluster.decode.start_gate.hold()
    task = asyncio.create_task(read(cluster.session(a_resumable())))
    await cluster.decode.start_gate.reached.wait()
    await cancelled(task)
    assert cluster.observer.receipts[0].outcome == Outcome.ABORTED
    cluster.check_settled()


async def test_client_that_leaves_with_a_token_that_was_held_back_ends_everything() -> None:
    cluster = FakeCluster()
    cluster.scheduler.holds_first_until_s = 0.01
    cluster.decode.start_gate.hold()
    stream = cluster.session(a_resumable()).run()
    assert (await anext(stream)).token_ids == [10]
    await stream.aclose()
    assert cluster.observer.receipts[0].outcome == Outcome.ABORTED
    cluster.check_settled()


async def test_request_that_is_not_resumable_gets_its_first_token_from_the_decode_worker() -> None:
    cluster = FakeCluster()
    assert tokens(await read(cluster.session(a_request()))) == SERVED
    assert cluster.decode.requests[0].num_generated == 0


async def test_answer_of_one_token_needs_no_decode_worker() -> None:
    cluster = FakeCluster(prefill=FakePrefill())
    cluster.prefill.ends_after = 1
    deltas = await read(cluster.session(a_resumable()))
    assert (tokens(deltas), deltas[-1].finish_reason) == ([10], FinishReason.STOP)
    assert cluster.decode.given == []
    cluster.check_settled()


async def test_answer_of_one_token_that_is_not_resumable_is_decoded() -> None:
    cluster = FakeCluster(prefill=FakePrefill())
    cluster.prefill.ends_after = 1
    assert tokens(await read(cluster.session(a_request()))) == SERVED
    cluster.check_settled()


@pytest.mark.parametrize(
    ("decode", "paths"),
    [
        (lambda: FakeDecode(fails_after=gone("d0")), [PAIR, PAIR]),
        (lambda: FakeDecode(fails_before=gone("d0")), [PAIR, PAIR]),
        (lambda: FakeDecode(fails_after=gone("d0") | gone("d1")), [PAIR, PAIR]),
        (lambda: FakeDecode(fails_before=gone("d0") | gone("d1")), [PAIR, PAIR, ON_PREFILL]),
        (lambda: FakeDecode(fails_after={"d0": GenerationFailed("an engine error", "d0")}), [PAIR, PAIR]),
    ],
    ids=["in mid-stream", "before the second token", "twice", "no decode worker is left", "engine error"],
)
async def test_request_goes_on_elsewhere_where_it_stood(decode: Callable[[], FakeDecode], paths: list[Path]) -> None:
    cluster = FakeCluster(decode=decode())
    deltas = await read(cluster.session(a_resumable(cache_salt="tenant", num_public_tokens=2)))
    assert (tokens(deltas), cluster.scheduler.paths) == (SERVED, paths)
    hashed_with = {(r.cache_salt, r.num_public_tokens) for r in cluster.prefill.requests + cluster.decode.requests}
    assert hashed_with == {("tenant", 2)}, "all workers know its blocks by the same hashes"
    assert [delta.prompt_sources is not None for delta in deltas] == [True, False, False]
    assert cluster.observer.receipts[0].outcome == Outcome.FINISHED
    cluster.check_settled()


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
async def test_answer_that_an_engine_cuts_off_goes_on_elsewhere(reason: FinishReason) -> None:
    cluster = FakeCluster()
    cluster.decode.cut_off = {"d0": reason}
    assert tokens(await read(cluster.session(a_resumable()))) == SERVED
    assert cluster.scheduler.paths == [PAIR, PAIR]
    cluster.check_settled()


async def test_handoff_that_the_decode_worker_did_not_redeem_is_withdrawn() -> None:
    cluster = FakeCluster()
    cluster.decode.redeem = lambda handoff: False
    assert tokens(await read(cluster.session(a_resumable()))) == SERVED
    cluster.check_settled()


async def test_each_attempt_runs_under_an_id_of_its_own() -> None:
    cluster = FakeCluster(decode=FakeDecode(fails_before=gone("d0")))
    await read(cluster.session(a_resumable()))
    assert [request.request_id for request in cluster.prefill.requests] == ["r", "r-2"]
    assert [request.prompt_token_ids for request in cluster.prefill.requests] == [[1, 2, 3, 4], [1, 2, 3, 4, 10]]
    assert {request.request_id for request in cluster.scheduler.requests} == {"r"}


async def test_forced_path_holds_for_the_first_attempt_only() -> None:
    cluster = FakeCluster(decode=FakeDecode(fails_before=gone("d0") | gone("d1")))
    assert tokens(await read(cluster.session(a_resumable(), ALONE))) == SERVED
    assert cluster.scheduler.paths[0] == ALONE
    cluster.check_settled()


async def test_stream_ends_with_its_failure_when_nobody_is_left_to_go_on() -> None:
    everybody = gone("d0") | gone("p0")
    cluster = FakeCluster(FakeScheduler(num_prefill=1, num_decode=1), decode=FakeDecode(fails_before=everybody))
    deltas: list[TokenDelta] = []
    with pytest.raises(WorkerUnreachable):
        await read(cluster.session(a_resumable()), deltas)
    assert tokens(deltas) == [10]
    assert cluster.observer.receipts[0].outcome == Outcome.FAILED
    cluster.check_settled()
