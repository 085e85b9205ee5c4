"""The state of an ingress replica on the PostgreSQL and the Redis of the tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.state.lifecycle import ChatState
from cluster.errors import StateUnavailable

REACHED_WITHIN_S = 60.0
"""A machine that is busy with other tests may take longer than a look waits."""


@asynccontextmanager
async def reached(state: ChatState) -> AsyncIterator[ChatState]:
    """The state once its stores have been reached. It is closed even if they never are: psycopg's pool ends only when
    it is closed, and the event loop waits for it.
    """
    try:
        async with asyncio.timeout(REACHED_WITHIN_S):
            while not await _is_reached(state):
                pass
        yield state
    finally:
        await state.close()


async def _is_reached(state: ChatState) -> bool:
    try:
        await state.look()
    except StateUnavailable:
        return False
    return True
