"""Responses that are kept, wherever they are generated: their streams, from any event on, and their end on demand."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from api.responses.running_turns import RunningTurns
from api.state.lifecycle import ChatState
from api.state.postgres.stores.responses import RUNNING, no_response
from api.wire.responses.short_events import Line, Retelling, is_last
from cluster.errors import InvalidRequest

LOOK_INTERVAL_S = 0.25
"""Between two looks at what another replica has told, where Redis does not tell."""
CANCELLED_WITHIN_S = 5.0
"""More than a replica takes to hear of it."""


async def resumed(
    turns: RunningTurns, state: ChatState, tenant: str, response: str, after: int
) -> AsyncGenerator[bytes, None]:
    """Its events after this one as JSON, to the last.

    Raises:
        NotFound: there is no such response.
        InvalidRequest: its events are not kept any more.
        StateUnavailable: it is not generated here, and PostgreSQL is away.
    """
    turn = turns.running(tenant, response)
    events = turn.events(after) if turn else _written(state, tenant, response, after)
    async with aclosing(events):
        async for event in events:
            yield event


async def _written(state: ChatState, tenant: str, response: str, after: int) -> AsyncGenerator[bytes, None]:
    """Those after this one, or at least the last one: who has seen more than became durable learns how it ended."""
    store, retelling, number, told = state.stores.response_events, None, -1, b""
    async with aclosing(_lines(state, tenant, response)) as lines:
        async for line in lines:
            if retelling is None:
                created = await store.created(tenant, response)
                if created is None:
                    raise no_response(response)
                retelling = Retelling(created)
            told = await asyncio.to_thread(retelling.told, line) if retelling.is_long(line) else retelling.told(line)
            number += 1
            if number > after:
                yield told
    if 0 <= number <= after:
        yield told


async def _lines(state: ChatState, tenant: str, response: str) -> AsyncGenerator[Line, None]:
    """From the first one on, to the last, as they become durable."""
    store, after = state.stores.response_events, -1
    while True:
        standing = await store.standing(tenant, response)
        if standing is None:
            raise no_response(response)
        if not standing.has_events:
            raise InvalidRequest(
                f"the events of response '{response}' are not kept any more: retrieve it without 'stream'",
                "stream",
                "events_expired",
            )
        while lines := await store.read(tenant, response, after):
            for line in lines:
                yield line
            after += len(lines)
        if standing.status not in RUNNING:
            return
        async with aclosing(state.tails.follow(tenant, response, after)) as batches:
            async for batch in batches:
                lines = await store.opened(tenant, response, batch.seq_from, batch.sealed, batch.key_version)
                for line in lines[after + 1 - batch.seq_from :]:
                    yield line
                after = batch.seq_to
                if is_last(lines[-1]):
                    return
        await asyncio.sleep(LOOK_INTERVAL_S)


async def cancelled(turns: RunningTurns, state: ChatState, tenant: str, response: str) -> None:
    """Returns when it has ended, wherever it is generated, or after some seconds."""
    if turn := turns.running(tenant, response):
        await turn.cancel()
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(CANCELLED_WITHIN_S):
            async with aclosing(_written(state, tenant, response, -1)) as events:
                async for _ in events:
                    pass
