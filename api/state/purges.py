"""What leaves the database by itself, a batch at a time: what was deleted, and what is older than its tenant's
retention. What runs stays.
"""

from datetime import timedelta

from api.state.database import EVERY_TENANT, Database, fetch_all
from api.state.queries import queries
from cluster.config import StateConfig

PURGES = ("deleted_conversations", "untouched_conversations", "old_responses", "old_chat_completions")
"""Of purges.sql, in this order."""
PURGED_AT_ONCE = 50

_SQL = queries("purges.sql")


class Purges:
    def __init__(self, database: Database, config: StateConfig) -> None:
        own = config.tenants
        self._database = database
        self._keep = {
            "keep_deleted": timedelta(days=config.keep_deleted_days),
            "keep": _days(config.retention_days),
            "tenants": list(own),
            "keep_own": [_days(tenant.retention_days) for tenant in own.values()],
        }

    async def run(self) -> int:
        """Returns how many are gone."""
        return sum([await self._purge(name) for name in PURGES])

    async def _purge(self, name: str) -> int:
        number = 0
        while True:
            async with self._database.transaction(EVERY_TENANT) as transaction:
                gone = await fetch_all(transaction, _SQL[name], **self._keep, limit=PURGED_AT_ONCE)
            number += len(gone)
            if len(gone) < PURGED_AT_ONCE:
                return number


def _days(days: float | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)
