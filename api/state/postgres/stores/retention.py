"""Retention: the background job that deletes rows in batches. It deletes what clients have deleted, what is older than
the retention of its tenant, the events of responses that are over, and old safety events. Running responses stay.
"""

import logging
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg.errors import QueryCanceled

from api.state.postgres.database import EVERY_TENANT, Row
from api.state.postgres.queries import queries
from api.state.postgres.stores.audit import AuditStore
from api.state.postgres.tenant_transaction import TenantDatabase
from api.state.redis.read_cache import ReadCache
from cluster.config.state import StateConfig
from cluster.errors import ServingError, StateUnavailable

logger = logging.getLogger("baton.state")

DELETIONS = ("deleted_conversations", "untouched_conversations", "old_responses", "old_chat_completions", "old_events")
"""The statements of retention.sql that delete rows, in the order in which they run."""
FENCE = timedelta(minutes=15)
"""How long nothing is stored for a tenant after its erasure. It exceeds the time for which a replica keeps writes that
PostgreSQL has not taken. Shorter could bring data back that a cut-off replica still has; longer refuses the
tenant for longer.
"""
KEEP_EVENTS = timedelta(hours=1)
"""How long the stream of a response can be resumed after its end. Longer takes more disk; shorter fails more clients
that come back late.
"""
DELETED_AT_ONCE = 50
"""Rows of one transaction. More is faster; fewer locks rows for less time."""
FORGOTTEN_AT_ONCE = 1000
"""Scopes of copies that one command deletes from Redis. More makes fewer commands; fewer blocks Redis for less time."""
BATCH_DIVISOR = 7
"""When a batch takes too long, its number of rows is divided by this. Higher reaches a batch that is small enough in
fewer tries; lower keeps batches larger, which take fewer transactions.
"""
DELETION_TIMEOUT_S = 600.0
"""How long one transaction of the retention may take, in seconds. Shorter never deletes a very large conversation;
longer finds a hanging PostgreSQL later.
"""

_SQL = queries("retention.sql")


class Retention:
    def __init__(self, database: TenantDatabase, cache: ReadCache, config: StateConfig) -> None:
        self._database = database
        self._cache = cache
        self._keep_deleted = timedelta(days=config.keep_deleted_days)
        self._retention = _days(config.retention_days)
        self._audit = AuditStore(database)
        self._keep_audit = _days(config.audit_days)
        self._own = {tenant: _days(config.retention_days_of(tenant)) for tenant in config.tenants}

    async def run(self) -> int:
        """Delete all rows whose time is over. Returns their number."""
        own = {"tenants": list(self._own), "keep_own": list(self._own.values())}
        async with self._database.transaction(EVERY_TENANT) as transaction:
            rows = await transaction.fetch_all(_SQL["retentions"], keep=self._retention, **own)
            await transaction.execute(_SQL["lift_fences"], fence=FENCE)
        keep = {
            "keep_deleted": self._keep_deleted,
            "keep_events": KEEP_EVENTS,
            "tenants": [row["tenant_id"] for row in rows],
            "keep": [row["keep"] for row in rows],
        }
        return sum([await self._delete(name, keep) for name in DELETIONS]) + await self._delete_safety_events()

    async def _delete_safety_events(self) -> int:
        """The events of a tenant whose chain is broken stay: they show what was done to it."""
        if self._keep_audit is None:
            return 0
        number, before = 0, (datetime.now(UTC) - self._keep_audit).timestamp()
        for tenant in await self._audit.tenants():
            try:
                number += await self._audit.delete_before(tenant, before)
            except StateUnavailable:
                raise
            except ServingError as error:
                logger.error("old safety events are not deleted: %s", error)
        return number

    async def _delete(self, name: str, keep: dict[str, Any]) -> int:
        number, limit = 0, DELETED_AT_ONCE
        while True:
            try:
                gone = await self._delete_batch(name, keep, limit)
            except StateUnavailable as error:
                if limit == 1 or not isinstance(error.__cause__, QueryCanceled):
                    raise
                limit = max(1, limit // BATCH_DIVISOR)
                continue
            number += gone
            if gone < limit:
                return number

    async def _delete_batch(self, name: str, keep: dict[str, Any], limit: int) -> int:
        """Delete up to `limit` rows. A batch of one row has no statement time-out."""
        gone: list[Row] = []
        try:
            async with self._database.transaction(EVERY_TENANT, DELETION_TIMEOUT_S) as transaction:
                if limit == 1:
                    await transaction.execute("SET LOCAL statement_timeout = 0")
                gone += await transaction.fetch_all(_SQL[name], **keep, limit=limit)
        finally:
            await self._forget_copies(gone)
        return len(gone)

    async def _forget_copies(self, gone: list[Row]) -> None:
        scopes: dict[str, list[str]] = defaultdict(list)
        for row in gone:
            scopes[row["tenant_id"]] += row["scopes"]
        for tenant, theirs in scopes.items():
            for first in range(0, len(theirs), FORGOTTEN_AT_ONCE):
                await self._cache.forget(tenant, theirs[first : first + FORGOTTEN_AT_ONCE])


def _days(days: float | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)
