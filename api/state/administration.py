"""What the operator does with tenants and their keys: rotation, rewrapping and erasure."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import LiteralString

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.postgres.database import EVERY_TENANT, Row
from api.state.postgres.queries import queries
from api.state.postgres.sealed_tables import SEALED_TABLES, TABLES, SealedTable, deletion_from
from api.state.postgres.tenant_transaction import TenantDatabase, TenantTransaction
from api.state.redis.client import RedisClient
from api.state.redis.usage_stream import STREAM, forget_end_users
from cluster.errors import NotFound, StateUnavailable

ERASED_AT_ONCE = 500
"""Rows that one transaction of an erasure deletes. More is faster; fewer locks rows for less time."""
RESEALED_AT_ONCE, RESEALED_BYTES = 200, 8 << 20
"""Rows that one transaction of a rotation seals anew, and their bytes unless a single row is larger. More is faster;
fewer keeps requests for the same rows waiting for less time.
"""
TRANSACTION_TIMEOUT_S = 60.0
"""How long one transaction may take, in seconds. Shorter fails on a busy server; longer finds a hanging server later.
"""
REPLICAS_LOOK_S = 3.0
"""Time between the destruction of a tenant's keys and the deletion of its rows, in seconds. Replicas that reach
PostgreSQL look for destroyed keys every LOOK_INTERVAL_S (api/state/lifecycle.py), and forget them within this time. A
replica whose looks have failed looks again up to MAX_LOOK_INTERVAL_S later. Shorter has more replicas use a destroyed
key while the rows are deleted; longer makes an erasure slower.
"""
SCANNED_AT_ONCE = 1000
"""Names that one command looks at in Redis. More makes fewer commands; fewer blocks Redis for less time."""

_SQL = queries("administration.sql")
_FORGET_END_USERS = {
    "usage_openings": _SQL["forget_end_users_of_openings"],
    "usage_ledger": _SQL["forget_end_users"],
    "usage_day_sums": _SQL["forget_end_users_of_sums"],
}
"""The statements that forget the names of end users, by table."""

Report = Callable[[str], None]


class Administration:
    def __init__(
        self, database: TenantDatabase, keys: TenantKeys, redis: Sequence[RedisClient], report: Report
    ) -> None:
        """`redis`: all that may have data of tenants. `report`: called with a line of text after each step."""
        self._database = database
        self._keys = keys
        self._redis = redis
        self._report = report

    async def tenants(self) -> list[str]:
        async with self._database.transaction(EVERY_TENANT) as transaction:
            rows = await transaction.fetch_all(_SQL["tenants"])
        return [row["id"] for row in rows if row["id"] != EVERY_TENANT]

    async def erase(self, tenant: str) -> dict[str, int]:
        """Delete all that is stored for a tenant. The keys are destroyed first, so that from then on nothing can be
        read even if the erasure is interrupted; called again, it continues. Returns the number of deleted rows by
        table.

        Raises:
            NotFound: there is no such tenant.
            StateUnavailable: PostgreSQL or Redis is away.
        """
        async with self._alone(tenant) as transaction:
            if await transaction.fetch_one(_SQL["begin_erasure"]) is None:
                raise _no_tenant(tenant)
            destroyed = await transaction.fetch_all(_SQL["destroy_keys"], before=None)
        self._report(f"{len(destroyed)} keys are destroyed; nothing is stored for the tenant any more")
        await asyncio.sleep(REPLICAS_LOOK_S)
        erased = {table: await self._emptied(tenant, table) for table in TABLES}
        self._report(f"{sum(erased.values())} rows are deleted")
        for table, forget in _FORGET_END_USERS.items():
            erased[f"{table} (names of end users)"] = await self._without_end_users(tenant, forget)
        erased["Redis"] = await self._delete_from_redis(tenant)
        erased[f"{STREAM} (names of end users)"] = sum([await forget_end_users(redis, tenant) for redis in self._redis])
        async with self._alone(tenant) as transaction:
            await transaction.execute(_SQL["end_erasure"])
        return erased

    async def rotate(self, tenant: str) -> list[int]:
        """Give a tenant a new key. New texts are sealed with it, and stored texts are sealed anew. Older keys are
        destroyed unless a running response still needs one of them; the next rotation destroys that one. Returns the
        versions of the destroyed keys.

        Raises:
            NotFound: there is no such tenant.
            ServingError: a stored text cannot be read.
            StateUnavailable: PostgreSQL is away.
        """
        async with self._as_tenant(tenant) as transaction:
            if await transaction.fetch_one(_SQL["tenant"]) is None:
                raise _no_tenant(tenant)
            key = await self._keys.add(transaction.connection, tenant)
        async with self._alone(tenant):
            pass  # every transaction that was about to seal with an older key has ended
        for table in SEALED_TABLES:
            number = 0
            while resealed := await self._resealed(table, key):
                number += resealed
            self._report(f"{table.name}: {number} rows are sealed anew")
        async with self._alone(tenant) as transaction:
            oldest = min([key.version] + [await _oldest_version(transaction, table) for table in SEALED_TABLES])
            rows = await transaction.fetch_all(_SQL["destroy_keys"], before=oldest)
        return [row["version"] for row in rows]

    async def rewrap(self) -> int:
        """Wrap the keys of all tenants with the current master key. Returns the number of keys that another master key
        had wrapped.
        """
        number = 0
        async with self._database.transaction(EVERY_TENANT, TRANSACTION_TIMEOUT_S) as transaction:
            rows = await transaction.fetch_all(_SQL["wrapped_keys"])
        for row in rows:
            async with self._as_tenant(row["tenant_id"]) as transaction:
                values = await self._keys.rewrapped(row["wrapped_key"])
                if values is not None:
                    number += 1
                    values |= {"version": row["version"], "before": row["wrapped_key"]}
                    await transaction.execute(_SQL["rewrap"], **values)
        return number

    @asynccontextmanager
    async def _as_tenant(self, tenant: str) -> AsyncIterator[TenantTransaction]:
        """A transaction in the name of the tenant, which is allowed even while the tenant is being erased."""
        async with self._database.transaction(EVERY_TENANT, TRANSACTION_TIMEOUT_S) as transaction:
            own = transaction.of(tenant)
            await own.execute("SET LOCAL statement_timeout = '60s'")
            await own.execute("SET LOCAL lock_timeout = '30s'")
            await own.execute("SELECT set_config('app.tenant_id', %(tenant)s, true)")
            yield own

    @asynccontextmanager
    async def _alone(self, tenant: str) -> AsyncIterator[TenantTransaction]:
        """The only transaction of the tenant."""
        async with self._as_tenant(tenant) as transaction:
            await transaction.execute(_SQL["alone"])
            yield transaction

    async def _emptied(self, tenant: str, table: LiteralString) -> int:
        """Delete the tenant's rows of a table. Returns their number."""
        number = 0
        while True:
            async with self._as_tenant(tenant) as transaction:
                deleted = await transaction.execute(deletion_from(table), limit=ERASED_AT_ONCE)
            number += deleted
            if deleted < ERASED_AT_ONCE:
                return number

    async def _without_end_users(self, tenant: str, forget: LiteralString) -> int:
        """Rows of the ledger outlive their tenant, for invoices. Returns the number of names that they lose."""
        number = 0
        while True:
            async with self._as_tenant(tenant) as transaction:
                forgotten = await transaction.execute(forget, limit=ERASED_AT_ONCE)
            number += forgotten
            if forgotten < ERASED_AT_ONCE:
                return number

    async def _delete_from_redis(self, tenant: str) -> int:
        """Returns the number of deleted names. Raises StateUnavailable."""
        of_limits = f"baton:*:{{{tenant}}}:*"  # names with the tenant as hash tag
        patterns = (f"baton:*:{tenant}:*", of_limits)
        return sum([await self._delete_names(redis, pattern) for redis in self._redis for pattern in patterns])

    async def _delete_names(self, redis: RedisClient, pattern: str) -> int:
        number, cursor = 0, 0
        while True:
            found = await redis.run(("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED_AT_ONCE))
            if found is None:
                raise StateUnavailable("Redis is away, and may have copies of the tenant's data", 1.0)
            cursor, names = int(found[0][0]), found[0][1]
            if names:
                await redis.run(("DEL", *names))
                number += len(names)
            if cursor == 0:
                return number

    async def _resealed(self, table: SealedTable, key: TenantKey) -> int:
        """Seal some rows with the new key. Returns their number; 0 if no rows are left."""
        async with self._as_tenant(key.tenant) as transaction:
            rows = await transaction.fetch_all(
                table.older_rows(), version=key.version, limit=RESEALED_AT_ONCE, max_bytes=RESEALED_BYTES
            )
            by_version = await transaction.keys_of(rows)
            for row in rows:
                old = by_version[row["key_version"]]
                values = await asyncio.to_thread(_sealed_anew, table, row, old, key)
                await transaction.execute(table.update(), **values)
            if table.name == "items":
                await transaction.execute(_SQL["forget_words"], items=[row["place"] for row in rows])
        return len(rows)


def _sealed_anew(table: SealedTable, row: Row, old: TenantKey, new: TenantKey) -> Row:
    values = {"ctid": row["ctid"], "version": new.version}
    for column in table.columns:
        place, text = f"{table.name}/{row['place']}/{column}", row[column]
        values[column] = None if text is None else new.seal(old.unseal(text, place), place)
    return values


async def _oldest_version(transaction: TenantTransaction, table: SealedTable) -> int:
    row = await transaction.fetch_one(table.oldest_version())
    assert row is not None
    return int(row["oldest"])


def _no_tenant(tenant: str) -> NotFound:
    return NotFound(f"nothing is stored for tenant '{tenant}'", None, "tenant_not_found")
