"""Responses that have lost whoever generated them: they end with what they had told, marked incomplete."""

import asyncio
import logging
from itertools import count

import msgspec
from psycopg.rows import DictRow

from api.state.encryption.tenant_keys import TenantKeys
from api.state.event_streams.response_events import Body, created_in, events_of
from api.state.postgres.database import EVERY_TENANT, Database, fetch_all, fetch_one
from api.state.postgres.queries import queries
from api.state.postgres.stores.items import new_id
from api.state.postgres.stores.responses import LEASE, Ending, end_response
from api.wire.responses.events import ResponseWriter
from api.wire.responses.short_events import Line, shortened, whole
from cluster.errors import Conflict, StateUnavailable

logger = logging.getLogger("baton.state")

ENDED_AT_ONCE = 100
MAX_FAILED = 2

_LOST = "the server was lost while it generated this response"
_SQL = queries("events.sql")


class Orphans:
    def __init__(self, database: Database, keys: TenantKeys) -> None:
        self._database = database
        self._keys = keys

    async def end(self) -> int:
        """End those whose lease has run out; returns how many. Several processes may do so at once.

        Not soon after PostgreSQL was away: whoever was cut off from it as we were renews its leases first.
        """
        if asyncio.get_running_loop().time() - self._database.reachable_since < LEASE.total_seconds():
            return 0
        for number in count(0):
            async with self._database.transaction(EVERY_TENANT) as transaction:
                found = await fetch_all(transaction, _SQL["orphans"], limit=ENDED_AT_ONCE)
            ended = await self._all_ended(found)
            if not any(ended) or len(found) < ENDED_AT_ONCE:
                return number * ENDED_AT_ONCE + sum(ended)
        raise AssertionError

    async def _all_ended(self, found: list[DictRow]) -> list[bool]:
        """One that takes too long keeps no other from ending. Raises StateUnavailable where that is not the reason."""
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
        """False where somebody else is at it."""
        try:
            return await self._restored_and_ended(tenant, response)
        except StateUnavailable:
            raise
        except Conflict:  # its tenant is being erased
            return False
        except Exception:
            logger.exception("what response %s had told cannot be read: it ends without", response)
            async with self._database.transaction(tenant) as transaction:
                return await fetch_one(transaction, _SQL["give_up"], tenant=tenant, id=response) is not None

    async def _restored_and_ended(self, tenant: str, response: str) -> bool:
        async with self._database.transaction(tenant) as transaction:
            row = await fetch_one(transaction, _SQL["lock_orphan"], tenant=tenant, id=response)
            if row is None:
                return False
            key = await self._keys.of_version(transaction, tenant, row["key_version"])
            lines = await events_of(transaction, self._keys, tenant, response)
            ending = await asyncio.to_thread(_ended, created_in(key, row), lines, row["is_cancelled"])
            return await end_response(transaction, self._keys, tenant, ending)


def _ended(created: Body, lines: list[Line], is_cancelled: bool) -> Ending:
    """With what it had told."""
    told = map(msgspec.json.decode, whole(lines, created))
    writer = ResponseWriter.restored({**created, "output": []}, told, new_id)
    last = writer.cancel() if is_cancelled else writer.fail(_LOST)
    return Ending.of(writer.response, created, lines + [shortened(event, created) for event in last])
