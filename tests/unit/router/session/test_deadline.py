import asyncio

import pytest

from cluster.errors import Overloaded
from cluster.messages.generation import TokenDelta
from router.session.deadline import RETRY_AFTER_S, FirstTokenDeadline, now
from router.session.timing import Timing


async def test_result_that_comes_in_time_is_returned() -> None:
    assert await FirstTokenDeadline(60.0, Timing(now())).within(asyncio.sleep(0, "result")) == "result"


async def test_request_without_a_token_in_time_is_refused() -> None:
    with pytest.raises(Overloaded) as refusal:
        await FirstTokenDeadline(0.01, Timing(now())).within(asyncio.Event().wait())
    assert refusal.value.retry_after_s == RETRY_AFTER_S


async def test_deadline_holds_no_more_once_a_token_was_released() -> None:
    timing = Timing(now())
    deadline = FirstTokenDeadline(0.0, timing)
    timing.released(TokenDelta(1, [7]), now())
    assert await deadline.within(asyncio.sleep(0.01, "late")) == "late"
