"""One placement on its own. What a session makes of its attempts is in test_session.py and test_resume.py."""

import asyncio
from contextlib import aclosing

import pytest

from cluster.errors import Overloaded, PrefillFailed
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Placement
from cluster.messages.scheduler_events import FirstToken, PrefillDone
from cluster.slo import SloConfig
from router.session.attempt import PlacementAttempt
from router.session.deadline import FirstTokenDeadline, now
from router.session.ports import SessionPorts
from router.session.timing import Timing
from tests.unit.factories import a_request
from tests.unit.fake_ports import SERVED, FakeCluster, FakePrefill

SLO = SloConfig().standard.resolve(0.0, None, None)
PAIR = Placement(path=Path.PREFILL_DECODE, prefill=WorkerId("p0"), decode=WorkerId("d0"), why="", slo=SLO)
ALONE = Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="", slo=SLO)
RESUMABLE = a_request("r-2", is_resumable=True)


def an_attempt(
    cluster: FakeCluster,
    placement: Placement = PAIR,
    request: GenerateRequest = RESUMABLE,
    *,
    is_start: bool = True,
    timeout_s: float = 60.0,
) -> PlacementAttempt:
    ports = SessionPorts(
        scheduler=cluster.scheduler, prefill=cluster.prefill, decode=cluster.decode, observer=cluster.observer
    )
    timing = Timing(now())
    deadline = FirstTokenDeadline(timeout_s, timing)
    return PlacementAttempt(
        placement, request, RequestId("r"), ports, timing=timing, deadline=deadline, is_start=is_start
    )


async def deltas_of(attempt: PlacementAttempt) -> list[TokenDelta]:
    async with aclosing(attempt):
        deltas = [delta async for delta in attempt.opening()]
        if attempt.stream is not None:
            deltas += [delta async for delta in attempt.stream]
    return deltas


async def test_scheduler_hears_of_an_attempt_by_the_id_of_the_request() -> None:
    cluster = FakeCluster()
    deltas = await deltas_of(an_attempt(cluster))
    assert [token for delta in deltas for token in delta.token_ids] == SERVED
    assert cluster.scheduler.told == [PrefillDone(request_id=RequestId("r")), FirstToken(request_id=RequestId("r"))]
    assert [request.request_id for request in cluster.prefill.requests + cluster.decode.requests] == ["r-2"] * 2


async def test_attempt_knows_where_the_prompt_came_from_on_both_workers() -> None:
    attempt = an_attempt(FakeCluster())
    assert (attempt.prefill_sources, attempt.sources) == (None, None)
    await deltas_of(attempt)
    assert attempt.prefill_sources == PromptTokenSources(computed=3, local=1, pulled=0)
    assert attempt.sources == PromptTokenSources(computed=0, local=0, pulled=4)


async def test_attempt_on_one_worker_has_no_prefill() -> None:
    cluster = FakeCluster()
    attempt = an_attempt(cluster, ALONE)
    await deltas_of(attempt)
    assert (attempt.prefill_sources, cluster.prefill.called, cluster.prefill.withdrawn) == (None, [], [])
    assert attempt.sources == PromptTokenSources(computed=4, local=0, pulled=0)


@pytest.mark.parametrize(("is_start", "expected"), [(True, [True, False, False]), (False, [False, False, False])])
async def test_sources_of_the_prompt_are_released_at_the_start_of_a_request_only(
    is_start: bool, expected: list[bool]
) -> None:
    deltas = await deltas_of(an_attempt(FakeCluster(), is_start=is_start))
    assert [delta.prompt_sources is not None for delta in deltas] == expected


async def test_token_after_the_prompt_may_be_the_whole_answer() -> None:
    cluster = FakeCluster()
    cluster.prefill.ends_after = 1
    (delta,) = await deltas_of(an_attempt(cluster))
    assert (delta.token_ids, delta.finish_reason) == ([10], FinishReason.STOP)
    assert cluster.decode.given == []


async def test_stream_that_is_closed_before_decoding_withdraws_the_handoff() -> None:
    cluster = FakeCluster()
    attempt = an_attempt(cluster)
    async with aclosing(attempt), aclosing(attempt.opening()) as opening:
        await anext(opening)
    assert cluster.prefill.withdrawn == [("p0", "r-2")]


async def test_prefill_that_fails_withdraws_what_may_be_pinned() -> None:
    cluster = FakeCluster(prefill=FakePrefill({"p0": PrefillFailed("no handoff", "p0")}))
    with pytest.raises(PrefillFailed):
        await deltas_of(an_attempt(cluster))
    assert cluster.prefill.withdrawn == [("p0", "r-2")]


@pytest.mark.parametrize("request_", [RESUMABLE, a_request("r-2")], ids=["first token from prefill", "plain"])
async def test_deadline_holds_for_the_prefill(request_: GenerateRequest) -> None:
    cluster = FakeCluster()
    cluster.prefill.gate.hold()
    with pytest.raises(Overloaded, match="in time"):
        await deltas_of(an_attempt(cluster, request=request_, timeout_s=0.01))
    assert cluster.prefill.cancelled == ["p0"]


async def test_deadline_holds_for_the_first_token_of_the_worker_that_generates() -> None:
    cluster = FakeCluster()
    cluster.decode.start_gate.hold()
    with pytest.raises(Overloaded, match="in time"):
        await deltas_of(an_attempt(cluster, request=a_request("r-2"), timeout_s=0.01))
    await asyncio.sleep(0)
    assert cluster.decode.num_ended == 1
