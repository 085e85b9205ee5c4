"""Responses whose ingress is lost. They end as failed, with the output that was stored."""

import asyncio
import logging
from itertools import count

import msgspec

from api.state.event_streams.response_events import Body, created_in, events_of
from api.state.postgres.database import EVERY_TENANT, Row
from api.state.postgres.queries import queries
from api.state.postgres.stores.items import new_id
from api.state.postgres.stores.responses import GENERATION_CLAIM, Ending, end_response
from api.state.postgres.tenant_transaction import TenantDatabase
from api.wire.responses.events import ResponseWriter
from api.wire.responses.short_events import Line, shortened, whole
from cluster.errors import Conflict, StateUnavailable

logger = logging.getLogger("baton.state")

ENDED_AT_ONCE = 100
"""Orphans that one look finds. Fewer takes more looks after a loss; more keeps more of them in memory."""
MAX_FAILED = 2
"""Orphans of one look that PostgreSQL may fail to end before the look is given up. Fewer lets slow orphans keep the
next ones waiting; more keeps asking a PostgreSQL that is away.
"""

_LOST = "the server was lost while it generated this response"
_SQL = queries("events.sql")


class Orphans:
    def __init__(self, database: TenantDatabase) -> None:
        self._database = database

    async def end(self) -> int:
        """End the responses whose generation claim has run out. Returns their number. Several processes may do this at
        once.

        No-op for a while after PostgreSQL was away: an ingress that was cut off too renews its claims first.
        """
        reachable_for_s = asyncio.get_running_loop().time() - self._database.database.reachable_since
        if reachable_for_s < GENERATION_CLAIM.total_seconds():
            return 0
        for number in count(0):
            async with self._database.transaction(EVERY_TENANT) as transaction:
                found = await transaction.fetch_all(_SQL["orphans"], limit=ENDED_AT_ONCE)
            ended = await self._all_ended(found)
            if not any(ended) or len(found) < ENDED_AT_ONCE:
                return number * ENDED_AT_ONCE + sum(ended)
        raise AssertionError

    async def _all_ended(self, found: list[Row]) -> list[bool]:
        """An orphan that takes too long does not keep the next ones from ending. Raises StateUnavailable if more than
        MAX_FAILED fail.
        """
        ended: list[bool] = []
        num_failed = 0
        for row in found:
            try:
                ended.append(await self._end(row["tenant_id"], row["id"]))
            except StateUnavailable:
                num_failed += 1
                if num_failed > MAX_FAILED:
                    raise
        return ended

    async def _end(self, tenant: str, response: str) -> bool:
        """False if another process is ending the response."""
        try:
            return await self._restored_and_ended(tenant, response)
        except StateUnavailable:
            raise
        except Conflict:  # the tenant is being erased
            return False
        except Exception:
            logger.exception("the events of orphaned response %s cannot be read: it ends without output", response)
            async with self._database.transaction(tenant) as transaction:
                return await transaction.fetch_one(_SQL["give_up"], id=response) is not None

    async def _restored_and_ended(self, tenant: str, response: str) -> bool:
        async with self._database.transaction(tenant) as transaction:
            row = await transaction.fetch_one(_SQL["lock_orphan"], id=response)
            if row is None:
                return False
            key = await transaction.key(row["key_version"])
            lines = await events_of(transaction, response)
            ending = await asyncio.to_thread(_ended, created_in(key, row), lines, row["is_cancelled"])
            return await end_response(transaction, ending)


def _ended(created: Body, lines: list[Line], is_cancelled: bool) -> Ending:
    """The end of a response, with the output of its stored events."""
    events = map(msgspec.json.decode, whole(lines, created))
    writer = ResponseWriter.restored({**created, "output": []}, events, new_id)
    last = writer.cancel() if is_cancelled else writer.fail(_LOST)
    return Ending.of(writer.response, created, lines + [shortened(event, created) for event in last])
