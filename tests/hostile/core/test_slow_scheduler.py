"""A Scheduler that stands still for a while, or whose connections end, keeps no room for requests that are over."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.hostile.core.paused import MAX_REQUESTS, Ingress, until

FREE_WITHIN_S = 10.0


@pytest_asyncio.fixture
async def ingress() -> AsyncIterator[Ingress]:
    one = Ingress()
    await until(one.scheduling._is_back.is_set, FREE_WITHIN_S)
    yield one
    one.scheduling.close()
    one.scheduler.kill()


async def all_room_is_free(ingress: Ingress) -> None:
    await until(lambda: ingress.scheduler.num_charged == 0, FREE_WITHIN_S)
    requests = await ingress.place(MAX_REQUESTS)
    assert ingress.scheduler.num_charged == MAX_REQUESTS
    ingress.end(requests)


@pytest.mark.parametrize("pause_s", [0.5, 1.0, 5.0])
async def test_requests_that_end_while_the_scheduler_stands_still_leave_their_room(
    ingress: Ingress, pause_s: float
) -> None:
    requests = await ingress.place(MAX_REQUESTS)
    ingress.scheduler.pause(pause_s)
    ingress.end(requests)
    await all_room_is_free(ingress)


async def test_requests_that_end_while_the_connection_is_lost_leave_their_room(ingress: Ingress) -> None:
    requests = await ingress.place(MAX_REQUESTS)
    ingress.scheduler.pause(0.5)
    ingress.end(requests[:10])
    await ingress.lose_connection()
    ingress.end(requests[10:])
    await all_room_is_free(ingress)


async def test_requests_that_go_on_stay_charged_when_the_connection_is_lost(ingress: Ingress) -> None:
    requests = await ingress.place(10)
    await ingress.lose_connection()
    ingress.end(requests[:4])
    await until(lambda: ingress.scheduler.num_charged == 6, FREE_WITHIN_S)
    await until(ingress.scheduling._is_back.is_set, FREE_WITHIN_S)
    assert ingress.scheduler.num_charged == 6


async def test_restarted_scheduler_charges_nothing_for_requests_of_its_predecessor(ingress: Ingress) -> None:
    requests = await ingress.place(10)
    ingress.restart_scheduler()
    ingress.end(requests)
    await until(ingress.scheduling._is_back.is_set, FREE_WITHIN_S)
    await all_room_is_free(ingress)


async def test_requests_of_an_ingress_that_dies_leave_their_room(ingress: Ingress) -> None:
    await ingress.place(10)
    ingress.die()
    await until(lambda: ingress.scheduler.num_charged == 0, FREE_WITHIN_S)
