"""What leaves the database by itself, a batch at a time: what was deleted, and what is older than its tenant's
retention, and the events of what is over. What runs stays.
"""

from collections import defaultdict
from datetime import timedelta
from typing import Any

from psycopg.errors import QueryCanceled
from psycopg.rows import DictRow

from api.state.postgres.database import EVERY_TENANT, Database, fetch_all
from api.state.postgres.queries import queries
from api.state.redis.read_cache import ReadCache
from cluster.config.state import StateConfig
from cluster.errors import StateUnavailable

PURGES = ("deleted_conversations", "untouched_conversations", "old_responses", "old_chat_completions", "old_events")
"""Of purges.sql, in this order."""
FENCE = timedelta(minutes=15)
"""After an erasure nothing is stored for the tenant for so long: longer than any replica keeps what PostgreSQL has not
taken. Shorter could bring back what a replica that was cut off still has; longer keeps whoever has the API key waiting.
"""
KEEP_EVENTS = timedelta(hours=1)
"""Of responses that are over: so long their streams can be resumed."""
PURGED_AT_ONCE = 50
FORGOTTEN_AT_ONCE = 1000
"""Copies."""
FEWER = 7
"""By which a batch is divided that takes too long."""
PURGE_TIMEOUT_S = 600.0

_SQL = queries("purges.sql")


class Retention:
    def __init__(self, database: Database, cache: ReadCache, config: StateConfig) -> None:
        self._database = database
        self._cache = cache
        self._keep_deleted = timedelta(days=config.keep_deleted_days)
        self._retention = _days(config.retention_days)
        self._own = {tenant: _days(config.retention_days_of(tenant)) for tenant in config.tenants}

    async def run(self) -> int:
        """Returns how many are gone."""
        own = {"tenants": list(self._own), "keep_own": list(self._own.values())}
        async with self._database.transaction(EVERY_TENANT) as transaction:
            rows = await fetch_all(transaction, _SQL["retentions"], keep=self._retention, **own)
            await transaction.execute(_SQL["lift_fences"], {"fence": FENCE})
        keep = {
            "keep_deleted": self._keep_deleted,
            "keep_events": KEEP_EVENTS,
            "tenants": [row["tenant_id"] for row in rows],
            "keep": [row["keep"] for row in rows],
        }
        return sum([await self._purge(name, keep) for name in PURGES])

    async def _purge(self, name: str, keep: dict[str, Any]) -> int:
        number, limit = 0, PURGED_AT_ONCE
        while True:
            try:
                gone = await self._purged(name, keep, limit)
            except StateUnavailable as error:
                if limit == 1 or not isinstance(error.__cause__, QueryCanceled):
                    raise
                limit = max(1, limit // FEWER)
                continue
            number += gone
            if gone < limit:
                return number

    async def _purged(self, name: str, keep: dict[str, Any], limit: int) -> int:
        """One alone has all the time that it takes."""
        gone: list[DictRow] = []
        try:
            async with self._database.transaction(EVERY_TENANT, PURGE_TIMEOUT_S) as transaction:
                if limit == 1:
                    await transaction.execute("SET LOCAL statement_timeout = 0")
                gone += await fetch_all(transaction, _SQL[name], **keep, limit=limit)
        finally:
            await self._forget_copies(gone)
        return len(gone)

    async def _forget_copies(self, gone: list[DictRow]) -> None:
        scopes: dict[str, list[str]] = defaultdict(list)
        for row in gone:
            scopes[row["tenant_id"]] += row["scopes"]
        for tenant, theirs in scopes.items():
            for first in range(0, len(theirs), FORGOTTEN_AT_ONCE):
                await self._cache.forget(tenant, theirs[first : first + FORGOTTEN_AT_ONCE])


def _days(days: float | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)
