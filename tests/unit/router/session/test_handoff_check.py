"""Handoffs that are checked: what the client gets, who is blamed, what is dropped, and what the next placement does."""

import asyncio
from typing import Any

import pytest

from cluster.errors import Overloaded, WorkerBusy, WorkerFailed, WorkerUnreachable
from cluster.messages.generation import GenerateRequest, TokenLogprob
from cluster.messages.ids import Path
from cluster.messages.scheduler_events import HandoffChecked, HandoffVerdict
from kvtransfer.handoff import PulledBlocks
from kvtransfer.tolerance import PRIOR_TOLERANCE
from router.trust.suspected_pairs import NUM_CLEARING
from tests.unit.factories import a_request
from tests.unit.fake_ports import SERVED, FakeCluster, FakeDecode, FakeScheduler, loop_rounds
from tests.unit.router.session.test_session import gone, read, tokens

PAIR, ALONE, ON_PREFILL = Path.PREFILL_DECODE, Path.DECODE, Path.PREFILL
AGREES, CLEARED, UNCLEAR = HandoffVerdict.AGREES, HandoffVerdict.CLEARED, HandoffVerdict.UNCLEAR
COPY_WRONG, PREFILL_WRONG = HandoffVerdict.COPY_WRONG, HandoffVerdict.PREFILL_WRONG


def top(off: float) -> list[TokenLogprob]:
    """Log-probabilities that are so many nats from `top(0.0)`."""
    return [TokenLogprob(10 + rank, -1.0 - rank - off) for rank in range(5)]


def a_resumable(**fields: Any) -> GenerateRequest:
    return a_request(is_resumable=True, is_verifiable=True, cache_salt="tenant", num_public_tokens=2, **fields)


PLAIN = a_request(is_verifiable=True, cache_salt="tenant", num_public_tokens=2)
KINDS = pytest.mark.parametrize("request_", [a_resumable(), PLAIN], ids=["first token from prefill", "plain"])


def a_cluster(prefill: float = 0.0, copy: float = 0.0, anew: float = 0.0, num_workers: int = 1) -> FakeCluster:
    """Engines that see these log-probabilities: a prefill engine, and a decode engine with and without the handoff."""
    cluster = FakeCluster(FakeScheduler(num_prefill=num_workers, num_decode=num_workers))
    cluster.prefill.top_logprobs = top(prefill)
    for number in range(num_workers):
        cluster.decode.top_logprobs_of[f"p{number}"] = top(prefill)
    cluster.decode.top_logprobs = top(anew)
    cluster.decode.top_logprobs_of_copies = top(copy)
    return cluster


def verdicts(cluster: FakeCluster) -> list[tuple[HandoffVerdict, int]]:
    """What was found, and the strikes that were counted."""
    told = [event for event in cluster.scheduler.told if isinstance(event, HandoffChecked)]
    assert told == cluster.observer.checks
    return [(event.verdict, event.num_strikes) for event in told]


def copies_of(cluster: FakeCluster, number: int) -> PulledBlocks:
    """What the decode worker has pulled under the lease of one handoff."""
    handoff = cluster.prefill.granted[number]
    return PulledBlocks(handoff.worker, handoff.lease)


@KINDS
async def test_handoff_that_agrees_is_released_after_it_was_checked(request_: GenerateRequest) -> None:
    cluster = a_cluster(copy=0.9 * PRIOR_TOLERANCE)
    deltas = await read(cluster.session(request_, verifies=True))
    assert (tokens(deltas), verdicts(cluster)) == (SERVED, [(AGREES, 0)])
    assert all(request.is_verified for request in cluster.prefill.requests + cluster.decode.requests)
    assert all(delta.top_logprobs is None for delta in deltas)
    assert (cluster.scheduler.paths, cluster.decode.forgotten) == ([PAIR], [])
    cluster.check_settled()


async def test_first_token_does_not_wait_for_the_check() -> None:
    cluster = FakeCluster()
    cluster.decode.start_gate.hold()
    stream = cluster.session(a_resumable(), verifies=True).run()
    assert tokens([await anext(stream)]) == [10]
    await stream.aclose()
    await loop_rounds(5)
    cluster.check_settled()


@KINDS
@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ({"copy": 9.0}, COPY_WRONG),
        ({"prefill": 9.0}, PREFILL_WRONG),
        ({"prefill": 0.0, "copy": 1.5, "anew": 0.75}, CLEARED),
    ],
    ids=["the copy", "the prefill engine", "nobody"],
)
async def test_third_opinion_answers_and_tells_who_was_wrong(
    request_: GenerateRequest, seen: dict[str, Any], verdict: HandoffVerdict
) -> None:
    cluster = a_cluster(**seen)
    deltas = await read(cluster.session(request_, verifies=True))
    assert tokens(deltas) == SERVED
    assert verdicts(cluster) == [(verdict, int(verdict.is_strike))]
    assert cluster.scheduler.paths == [PAIR], "the decode worker itself computes it again"
    anew = cluster.decode.requests[-1]
    assert cluster.decode.given[-1] == ("d0", None)
    assert (anew.prompt_token_ids, anew.num_generated) == (
        ([1, 2, 3, 4, 10], 1) if request_.is_resumable else ([1, 2, 3, 4], 0)
    )
    assert anew.cache_salt not in (None, request_.cache_salt), "it finds no cached block"
    assert anew.num_public_tokens == 0, "nor a public one"
    sources = next(delta.prompt_sources for delta in deltas if delta.prompt_sources)
    assert sources.pulled == 0
    cluster.check_settled()


async def test_first_strike_drops_the_wrong_copy_alone() -> None:
    cluster = a_cluster(copy=9.0)
    await read(cluster.session(PLAIN, verifies=True))
    assert cluster.decode.forgotten == [("d0", copies_of(cluster, 0))]


async def test_first_strike_against_a_prefill_worker_drops_nothing() -> None:
    cluster = a_cluster(prefill=9.0)
    await read(cluster.session(PLAIN, verifies=True))
    assert cluster.decode.forgotten == []


@pytest.mark.parametrize(
    ("seen", "verdict", "also"),
    [({"copy": 9.0}, COPY_WRONG, []), ({"prefill": 9.0}, PREFILL_WRONG, [("p0", None)])],
    ids=["the copy", "the prefill engine"],
)
async def test_second_strike_drops_what_came_from_that_lender_and_ends_handoffs_of_the_pair(
    seen: dict[str, Any], verdict: HandoffVerdict, also: list[Any]
) -> None:
    cluster = a_cluster(**seen)
    await read(cluster.session(PLAIN, verifies=True))
    cluster.decode.forgotten.clear()
    assert tokens(await read(cluster.session(PLAIN))) == SERVED, "it is verified although its session does not ask"
    assert verdicts(cluster) == [(verdict, 1), (verdict, 2)]
    assert cluster.decode.forgotten == [("d0", PulledBlocks(cluster.prefill.granted[0].worker)), *also]
    assert tokens(await read(cluster.session(PLAIN))) == SERVED
    assert cluster.scheduler.paths == [PAIR, PAIR, ALONE]
    assert cluster.scheduler.num_charged == 0


async def test_handoffs_that_were_under_way_together_convict_nobody() -> None:
    cluster = a_cluster(copy=9.0)
    cluster.decode.start_gate.hold()
    requests = [a_request(name, is_verifiable=True) for name in ("r", "s", "t")]
    readers = [asyncio.create_task(read(cluster.session(request, verifies=True))) for request in requests]
    await cluster.decode.start_gate.reached.wait()
    await loop_rounds(20)
    cluster.decode.start_gate.open()
    assert [tokens(await reader) for reader in readers] == [SERVED] * 3
    assert verdicts(cluster) == [(COPY_WRONG, 1)] * 3
    assert await read(cluster.session(PLAIN))
    assert cluster.scheduler.paths == [PAIR] * 4


async def test_suspected_pair_is_cleared_by_good_handoffs() -> None:
    cluster = a_cluster(copy=9.0)
    await read(cluster.session(PLAIN, verifies=True))
    cluster.decode.top_logprobs_of_copies = top(0.0)
    for _ in range(NUM_CLEARING):
        await read(cluster.session(PLAIN))
    assert verdicts(cluster)[1:] == [(AGREES, 1)] * NUM_CLEARING
    await read(cluster.session(PLAIN))
    assert len(verdicts(cluster)) == 1 + NUM_CLEARING, "no longer verified"
    assert set(cluster.scheduler.paths) == {PAIR}


async def test_suspected_pair_hands_nothing_over_that_cannot_be_verified() -> None:
    cluster = a_cluster(copy=9.0)
    await read(cluster.session(PLAIN, verifies=True))
    assert tokens(await read(cluster.session(a_request()))) == SERVED
    assert cluster.scheduler.paths == [PAIR, ALONE]


@KINDS
async def test_suspected_pair_hands_nothing_over_whose_check_does_not_come(
    request_: GenerateRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.session.handoff_check.PATIENCE_S", 0.01)
    cluster = a_cluster(copy=9.0)
    await read(cluster.session(PLAIN, verifies=True))
    cluster.decode.hangs_on, cluster.prefill.top_logprobs = {"p0"}, None
    assert tokens(await read(cluster.session(request_))) == SERVED
    assert cluster.decode.given[-1] == ("d0", None)
    assert verdicts(cluster) == [(COPY_WRONG, 1)], "nothing was compared, so it is no strike"
    assert len(cluster.decode.forgotten) == 2


@KINDS
async def test_request_goes_elsewhere_if_all_three_disagree(request_: GenerateRequest) -> None:
    cluster = a_cluster(prefill=0.0, copy=9.0, anew=18.0, num_workers=2)
    assert tokens(await read(cluster.session(request_, verifies=True))) == SERVED
    assert verdicts(cluster)[0] == (UNCLEAR, 1)
    assert cluster.scheduler.paths[-1] is ON_PREFILL
    cluster.check_settled()


@KINDS
@pytest.mark.parametrize(
    ("failure", "lost"),
    [(WorkerUnreachable("gone", "d0"), ["d0"]), (WorkerBusy("full", "d0"), [])],
    ids=["gone", "full"],
)
async def test_third_opinion_that_never_comes_blames_nobody_and_the_request_goes_on(
    request_: GenerateRequest, failure: WorkerFailed, lost: list[str]
) -> None:
    cluster = a_cluster(copy=9.0, num_workers=2)
    cluster.decode.fails_without_handoff = {"d0": failure}
    cluster.decode.top_logprobs_of["d1"] = top(0.0)
    assert tokens(await read(cluster.session(request_, verifies=True))) == SERVED
    assert all(event.decode != "d0" for event in cluster.observer.checks)
    assert ("d0", copies_of(cluster, 0)) in cluster.decode.forgotten
    assert cluster.scheduler.lost == lost
    cluster.check_settled()


async def test_third_opinion_that_does_not_come_in_time_blames_nobody() -> None:
    cluster = a_cluster(copy=9.0)
    cluster.decode.anew_gate.hold()
    with pytest.raises(Overloaded):
        await read(cluster.session(PLAIN, verifies=True, first_token_timeout_s=0.05))
    assert verdicts(cluster) == []
    assert cluster.decode.forgotten == [("d0", copies_of(cluster, 0))]
    cluster.check_settled()


async def test_third_opinion_without_log_probabilities_blames_nobody_and_is_the_answer() -> None:
    cluster = a_cluster(copy=9.0)
    cluster.decode.top_logprobs = None
    assert tokens(await read(cluster.session(PLAIN, verifies=True))) == SERVED
    assert verdicts(cluster) == []
    assert cluster.decode.given[-1] == ("d0", None)
    assert cluster.decode.forgotten == [("d0", copies_of(cluster, 0))]


async def test_clients_that_leave_before_the_third_opinion_convict_nobody() -> None:
    """What their handoffs brought is dropped, or a wrong copy would stay in the cache of the decode worker."""
    cluster = a_cluster(copy=9.0)
    cluster.decode.anew_gate.hold()
    for number in range(3):
        cluster.decode.anew_gate.reached.clear()
        reader = asyncio.create_task(read(cluster.session(PLAIN, verifies=True)))
        await cluster.decode.anew_gate.reached.wait()
        reader.cancel()
        await asyncio.wait([reader])
        assert cluster.decode.forgotten[number:] == [("d0", copies_of(cluster, number))]
    assert verdicts(cluster) == []
    cluster.decode.anew_gate.open()
    cluster.decode.top_logprobs_of_copies = top(0.0)
    assert tokens(await read(cluster.session(PLAIN))) == SERVED
    assert cluster.scheduler.paths == [PAIR] * 4
    assert cluster.scheduler.num_charged == 0


async def test_client_that_leaves_convicts_no_suspected_pair() -> None:
    cluster = a_cluster(copy=9.0)
    await read(cluster.session(PLAIN, verifies=True))
    cluster.decode.anew_gate.hold()
    cluster.decode.anew_gate.reached.clear()
    reader = asyncio.create_task(read(cluster.session(PLAIN)))
    await cluster.decode.anew_gate.reached.wait()
    reader.cancel()
    await asyncio.wait([reader])
    assert verdicts(cluster) == [(COPY_WRONG, 1)]
    assert cluster.decode.forgotten == [("d0", copies_of(cluster, number)) for number in range(2)]


async def test_check_that_cannot_be_made_costs_nothing() -> None:
    cluster = FakeCluster(decode=FakeDecode(fails_before=gone("p0")))
    cluster.decode.top_logprobs = top(0.0)
    assert tokens(await read(cluster.session(a_resumable(), verifies=True))) == SERVED
    assert (cluster.observer.checks, cluster.scheduler.paths) == ([], [PAIR])
    cluster.check_settled()


async def test_check_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.session.handoff_check.PATIENCE_S", 0.01)
    cluster = FakeCluster()
    cluster.decode.hangs_on = {"p0"}
    cluster.decode.top_logprobs = top(0.0)
    assert tokens(await read(cluster.session(a_resumable(), verifies=True))) == SERVED
    assert cluster.observer.checks == []
    await loop_rounds(5)
    cluster.check_settled()


@pytest.mark.parametrize(
    "request_", [a_request(), a_resumable(num_sequences=2)], ids=["has logprobs", "not handed over"]
)
async def test_what_cannot_be_checked_is_served_unchecked(request_: GenerateRequest) -> None:
    cluster = FakeCluster()
    assert tokens(await read(cluster.session(request_, verifies=True)))[:1] == [10]
    assert cluster.observer.checks == []
