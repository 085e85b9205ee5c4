"""A request that begins before it is granted: no token leaves before, and a denial comes before all other errors."""

import asyncio
from typing import Any

import pytest

from cluster.errors import RateLimited, ServingError
from cluster.messages.ids import Outcome
from router.session.session import Session
from tests.unit.factories import a_request
from tests.unit.fake_ports import SERVED, FakeCluster, FakeScheduler, loop_rounds
from tests.unit.router.session.test_session import read, tokens

ROUNDS = 50
DENIED = RateLimited("no room", "tokens", 1.0, {})


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def a_session(cluster: FakeCluster) -> tuple[Session, "asyncio.Future[Any]"]:
    session = cluster.session(a_request())
    granted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    session.release_after(granted)
    return session, granted


async def test_prompt_is_computed_meanwhile_and_no_token_leaves_before_the_grant(cluster: FakeCluster) -> None:
    session, granted = a_session(cluster)
    seen: list[Any] = []
    reading = asyncio.create_task(read(session, seen))
    await loop_rounds(ROUNDS)
    assert (len(cluster.decode.given), seen) == (1, [])
    granted.set_result(None)
    assert tokens(await reading) == SERVED
    assert cluster.observer.receipts[0].outcome is Outcome.FINISHED
    cluster.check_settled()


async def test_denied_request_ends_on_its_engines_and_gives_its_client_nothing(cluster: FakeCluster) -> None:
    session, granted = a_session(cluster)
    seen: list[Any] = []
    reading = asyncio.create_task(read(session, seen))
    await loop_rounds(ROUNDS)
    granted.set_exception(DENIED)
    with pytest.raises(RateLimited):
        await reading
    (receipt,) = cluster.observer.receipts
    assert (seen, receipt.outcome, receipt.num_output_tokens) == ([], Outcome.REJECTED, 0)
    assert [attempt.num_delivered for attempt in receipt.attempts] == [0]
    cluster.check_settled()


@pytest.mark.parametrize("denied", [True, False])
async def test_request_that_cannot_be_placed_hears_of_the_denial_first(denied: bool) -> None:
    cluster = FakeCluster(FakeScheduler(num_prefill=0, num_decode=0))
    session, granted = a_session(cluster)
    reading = asyncio.create_task(read(session))
    await loop_rounds(ROUNDS)
    assert not reading.done()  # the headers of its answer say what its limits have left
    if denied:
        granted.set_exception(DENIED)
    else:
        granted.set_result(None)
    with pytest.raises(ServingError) as error:
        await reading
    assert isinstance(error.value, RateLimited) == denied
    assert cluster.observer.receipts[0].outcome is Outcome.REJECTED
    cluster.check_settled()


async def test_client_that_leaves_while_its_grant_is_out_is_no_denial(cluster: FakeCluster) -> None:
    session, granted = a_session(cluster)
    reading = asyncio.create_task(read(session))
    await loop_rounds(ROUNDS)
    reading.cancel()
    await asyncio.wait([reading])
    assert not granted.cancelled()  # whoever reserves gives back what was granted
    assert cluster.observer.receipts[0].outcome is Outcome.ABORTED
    cluster.check_settled()
