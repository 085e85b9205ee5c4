"""One tenant cannot take from the others what all of them need."""

import asyncio

import pytest

from api.state import search
from api.wire.pages import Page
from cluster.errors import StateUnavailable, TooManyRequests


async def test_tenant_whose_statements_are_slow_leaves_connections_to_the_others(state, state_with):
    state = await state_with(max_connections=4)
    begun, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def slow() -> None:
        async with state._database.transaction("greedy"):
            begun.release()
            await may_end.wait()

    busy = [asyncio.create_task(slow()) for _ in range(12)]
    for _ in range(2):
        await begun.acquire()
    async with asyncio.timeout(1):
        conversation = await state.stores.conversations.create("modest", {}, [])
        assert await state.stores.conversations.get("modest", conversation.id)
    for task in busy:
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)


async def test_tenant_that_waits_for_itself_too_long_is_told_so(state, state_with, monkeypatch):
    monkeypatch.setattr("api.state.database.CONNECTION_TIMEOUT_S", 0.05)
    state = await state_with(max_connections=2)
    async with state._database.transaction("greedy"):
        with pytest.raises(StateUnavailable):
            async with state._database.transaction("greedy"):
                pass
        async with state._database.transaction("modest"):
            pass


async def test_searches_of_one_tenant_take_turns(state, monkeypatch):
    monkeypatch.setattr(search, "CONNECTION_TIMEOUT_S", 0.05)
    searches = state.stores.search
    async with searches._shares.one("greedy"):
        with pytest.raises(TooManyRequests):
            await find(searches, "greedy")
        assert (await find(searches, "modest")).part.data == []


async def find(searches, tenant):
    return await searches.find(tenant, "dog", Page(None, 10, True), None, {})
