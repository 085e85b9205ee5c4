"""Requests that the Scheduler pauses in mid-answer: their clients get every token, and cannot tell."""

import asyncio

import pytest

from cluster.errors import TooManyRequests
from cluster.messages.generation import TokenDelta
from cluster.messages.ids import Outcome, Path
from cluster.messages.placement import Rejection
from tests.unit.factories import a_request
from tests.unit.fake_ports import SERVED, FakeCluster, loop_rounds
from tests.unit.router.session.test_resume import a_resumable
from tests.unit.router.session.test_session import read, tokens


async def paused(cluster: FakeCluster, attempt: int = 1, *, is_resumable: bool = True) -> list[TokenDelta]:
    """Serve a request that is told to pause after its second token."""
    cluster.decode.gate.hold()
    deltas: list[TokenDelta] = []
    request = a_resumable() if is_resumable else a_request()
    reading = asyncio.create_task(read(cluster.session(request), deltas))
    await cluster.decode.gate.reached.wait()
    await loop_rounds(5)
    cluster.scheduler.pauses[request.request_id](attempt)
    cluster.decode.gate.open()
    await reading
    return deltas


async def test_paused_request_goes_on_with_the_same_tokens() -> None:
    cluster = FakeCluster()
    assert tokens(await paused(cluster)) == SERVED
    first, second = cluster.scheduler.requests
    assert (first.attempt, first.can_pause, first.is_paused, first.num_pauses) == (1, True, False, 0)
    assert (second.attempt, second.can_pause, second.is_paused, second.num_pauses) == (2, True, True, 1)
    assert second.num_output_tokens == cluster.prefill.requests[1].num_generated == 2
    cluster.check_settled()


async def test_paused_request_comes_after_those_that_it_made_room_for() -> None:
    """Its first token is not due at once, as after a failure."""
    cluster = FakeCluster()
    await paused(cluster)
    (_, again) = cluster.prefill.requests
    assert again.first_token_within_s is not None and again.first_token_within_s > 0.0


async def test_pause_is_no_failure() -> None:
    """The same worker may run the request again, and nobody hears of a lost worker."""
    cluster = FakeCluster()
    await paused(cluster)
    assert cluster.scheduler.requests[1].excluded == frozenset()
    assert cluster.scheduler.lost == []
    (receipt,) = cluster.observer.receipts
    assert (receipt.outcome, receipt.num_attempts, receipt.num_pauses) == (Outcome.FINISHED, 2, 1)
    assert receipt.engines_lost == []


@pytest.mark.parametrize("attempt", [0, 2, 7])
async def test_pause_of_another_attempt_is_ignored(attempt: int) -> None:
    cluster = FakeCluster()
    assert tokens(await paused(cluster, attempt)) == SERVED
    assert len(cluster.scheduler.requests) == 1
    assert cluster.observer.receipts[0].num_pauses == 0


async def test_pause_of_a_request_that_cannot_go_on_elsewhere_is_ignored() -> None:
    cluster = FakeCluster()
    assert tokens(await paused(cluster, is_resumable=False)) == SERVED
    assert not cluster.scheduler.requests[0].can_pause
    assert len(cluster.scheduler.requests) == 1


async def test_operator_s_path_is_kept() -> None:
    cluster = FakeCluster()
    await read(cluster.session(a_resumable(), Path.DECODE))
    assert not cluster.scheduler.requests[0].can_pause


async def test_pause_that_comes_twice_or_late_changes_nothing() -> None:
    cluster = FakeCluster()
    assert tokens(await paused(cluster)) == SERVED
    for attempt in (1, 2):
        cluster.scheduler.pauses[a_resumable().request_id](attempt)
    await loop_rounds(5)
    assert len(cluster.scheduler.requests) == 2
    cluster.check_settled()


async def test_client_may_leave_while_its_request_is_paused() -> None:
    cluster = FakeCluster()
    cluster.decode.gate.hold()
    deltas: list[TokenDelta] = []
    reading = asyncio.create_task(read(cluster.session(a_resumable()), deltas))
    await cluster.decode.gate.reached.wait()
    await loop_rounds(5)
    cluster.scheduler.gate.hold()
    cluster.scheduler.pauses[a_resumable().request_id](1)
    cluster.decode.gate.open()
    while len(cluster.scheduler.requests) < 2:
        await loop_rounds(1)
    reading.cancel()
    await asyncio.wait([reading])
    assert tokens(deltas) == SERVED[: len(tokens(deltas))]
    assert cluster.observer.receipts[0].outcome == Outcome.ABORTED
    cluster.check_settled()


async def test_refusal_of_a_paused_request_says_why() -> None:
    cluster = FakeCluster()
    cluster.decode.gate.hold()
    reading = asyncio.create_task(read(cluster.session(a_resumable())))
    await cluster.decode.gate.reached.wait()
    await loop_rounds(5)
    cluster.scheduler.refusal = Rejection(retry_after_s=1.0, why="no worker lives", is_overload=True)
    cluster.scheduler.pauses[a_resumable().request_id](1)
    cluster.decode.gate.open()
    with pytest.raises(TooManyRequests, match="no worker lives"):
        await reading
