"""Resume: the streams of stored responses from any event on, and their cancellation, from any replica."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from api.responses.running_turns import RunningTurns
from api.state.lifecycle import ChatState
from api.state.postgres.stores.responses import RUNNING, no_response
from api.wire.responses.short_events import EventRestorer, Line, is_last
from cluster.errors import InvalidRequest

LOOK_INTERVAL_S = 0.25
"""The time between two looks into PostgreSQL for new events of another replica while Redis has none, in seconds.
Shorter costs PostgreSQL more; longer shows events later.
"""
CANCELLED_WITHIN_S = 5.0
"""How long a cancellation waits for the end of a response on another replica, in seconds. It exceeds the time between
two renewals of a generation claim, at which the replica learns of the cancellation. Shorter returns before the end;
longer keeps clients waiting when that replica is lost.
"""


async def resumed(
    turns: RunningTurns, state: ChatState, tenant: str, response: str, after: int
) -> AsyncGenerator[bytes, None]:
    """The events of a response after event `after`, as JSON, up to the last one.

    Raises:
        NotFound: there is no such response.
        InvalidRequest: the retention has deleted the events.
        StateUnavailable: another replica generates the response, and PostgreSQL is away.
    """
    turn = turns.running(tenant, response)
    events = turn.events(after) if turn else _stored_events(state, tenant, response, after)
    async with aclosing(events):
        async for event in events:
            yield event


async def _stored_events(state: ChatState, tenant: str, response: str, after: int) -> AsyncGenerator[bytes, None]:
    """The stored events after event `after`. A client that has seen more events than are stored gets the last one
    again, and so learns how the response ended.
    """
    store, restorer, number, event = state.stores.response_events, None, -1, b""
    async with aclosing(_lines(state, tenant, response)) as lines:
        async for line in lines:
            if restorer is None:
                created = await store.created(tenant, response)
                if created is None:
                    raise no_response(response)
                restorer = EventRestorer(created)
            event = (
                await asyncio.to_thread(restorer.in_full, line) if restorer.is_long(line) else restorer.in_full(line)
            )
            number += 1
            if number > after:
                yield event
    if 0 <= number <= after:
        yield event


async def _lines(state: ChatState, tenant: str, response: str) -> AsyncGenerator[Line, None]:
    """All events of a response as short lines, from the first to the last, as they are stored."""
    store, after = state.stores.response_events, -1
    while True:
        standing = await store.standing(tenant, response)
        if standing is None:
            raise no_response(response)
        if not standing.has_events:
            raise InvalidRequest(
                f"the events of response '{response}' are deleted already: retrieve the response without 'stream'",
                "stream",
                "events_expired",
            )
        while lines := await store.read(tenant, response, after):
            for line in lines:
                yield line
            after += len(lines)
        if standing.status not in RUNNING:
            return
        async with aclosing(state.live_tails.follow(tenant, response, after)) as batches:
            async for batch in batches:
                lines = await store.opened(tenant, response, batch.seq_from, batch.sealed, batch.key_version)
                for line in lines[after + 1 - batch.seq_from :]:
                    yield line
                after = batch.seq_to
                if is_last(lines[-1]):
                    return
        await asyncio.sleep(LOOK_INTERVAL_S)


async def cancelled(turns: RunningTurns, state: ChatState, tenant: str, response: str) -> None:
    """Wait until a response that is marked as cancelled has ended, but no longer than CANCELLED_WITHIN_S."""
    if turn := turns.running(tenant, response):
        await turn.cancel()
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(CANCELLED_WITHIN_S):
            async with aclosing(_stored_events(state, tenant, response, -1)) as events:
                async for _ in events:
                    pass
