"""What the operator does with the keys of tenants, and with tenants: rotation and erasure."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import LiteralString

from psycopg import sql
from psycopg.rows import DictRow

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.postgres.database import EVERY_TENANT, Database, Transaction, fetch_all, fetch_one
from api.state.postgres.queries import queries
from api.state.postgres.sealed_tables import SEALED_TABLES, TABLES, SealedTable
from api.state.redis.client import RedisClient
from cluster.errors import NotFound, StateUnavailable

ERASED_AT_ONCE = 500
RESEALED_AT_ONCE, RESEALED_BYTES = 200, 8 << 20
"""Rows of a transaction, and bytes of them, but for a single one. More is faster, and keeps those who use the same rows
waiting for longer.
"""
TRANSACTION_TIMEOUT_S = 60.0
REPLICAS_LOOK_S = 3.0
"""By then every replica that reaches PostgreSQL has forgotten a key that is destroyed (ChatState.look)."""
SCANNED_AT_ONCE = 1000

_SQL = queries("administration.sql")

Tell = Callable[[str], None]


class Administration:
    def __init__(self, database: Database, keys: TenantKeys, volatile: RedisClient, tell: Tell) -> None:
        """`tell`: called with what has been done, now and then."""
        self._database = database
        self._keys = keys
        self._volatile = volatile
        self._tell = tell

    async def tenants(self) -> list[str]:
        async with self._database.transaction(EVERY_TENANT) as transaction:
            rows = await fetch_all(transaction, _SQL["tenants"])
        return [row["id"] for row in rows if row["id"] != EVERY_TENANT]

    async def erase(self, tenant: str) -> dict[str, int]:
        """All that is stored for it; its keys first, so that nothing can be read from then on, whatever comes between.
        Done again, it goes on where it has ended. Returns how many rows of each table are gone.

        Raises:
            NotFound: there is no such tenant.
            StateUnavailable: PostgreSQL or Redis is away.
        """
        async with self._alone(tenant) as transaction:
            if await fetch_one(transaction, _SQL["begin_erasure"], tenant=tenant) is None:
                raise _no_tenant(tenant)
            gone = await fetch_all(transaction, _SQL["destroy_keys"], tenant=tenant, before=None)
        self._tell(f"{len(gone)} keys are destroyed; nothing is stored any more")
        await asyncio.sleep(REPLICAS_LOOK_S)
        erased = {table: await self._emptied(tenant, table) for table in TABLES}
        self._tell(f"{sum(erased.values())} rows are deleted")
        erased["Redis"] = await self._forgotten(tenant)
        async with self._alone(tenant) as transaction:
            await transaction.execute(_SQL["end_erasure"], {"tenant": tenant})
        return erased

    async def rotate(self, tenant: str) -> list[int]:
        """A new key: what is written from now on is sealed with it, and what is there is sealed anew. The keys before
        are destroyed where nothing is sealed with them any more; else, where responses are running, they are by the
        next rotation. Returns the versions that are destroyed.

        Raises:
            NotFound: there is no such tenant.
            ServingError: something cannot be read.
            StateUnavailable: PostgreSQL is away.
        """
        async with self._own(tenant) as transaction:
            if await fetch_one(transaction, _SQL["tenant"], tenant=tenant) is None:
                raise _no_tenant(tenant)
            key = await self._keys.add(transaction, tenant)
        async with self._alone(tenant):
            pass  # whoever is about to seal with an older one has done so
        for table in SEALED_TABLES:
            number = 0
            while resealed := await self._resealed(table, key):
                number += resealed
            self._tell(f"{table.name}: {number} rows are sealed anew")
        async with self._alone(tenant) as transaction:
            oldest = min([key.version] + [await _oldest(transaction, table, tenant) for table in SEALED_TABLES])
            rows = await fetch_all(transaction, _SQL["destroy_keys"], tenant=tenant, before=oldest)
        return [row["version"] for row in rows]

    async def rewrap(self) -> int:
        """All keys of tenants with the master key of today. Returns how many were not."""
        number = 0
        async with self._database.transaction(EVERY_TENANT, TRANSACTION_TIMEOUT_S) as transaction:
            rows = await fetch_all(transaction, _SQL["wrapped_keys"])
        for row in rows:
            async with self._own(row["tenant_id"]) as transaction:
                values = await self._keys.rewrapped(row["wrapped_key"])
                if values is not None:
                    number += 1
                    values |= {"tenant": row["tenant_id"], "version": row["version"], "before": row["wrapped_key"]}
                    await transaction.execute(_SQL["rewrap"], values)
        return number

    @asynccontextmanager
    async def _own(self, tenant: str) -> AsyncIterator[Transaction]:
        """In the name of the tenant, though it is being erased."""
        async with self._database.transaction(EVERY_TENANT, TRANSACTION_TIMEOUT_S) as transaction:
            await transaction.execute("SET LOCAL statement_timeout = '60s'")
            await transaction.execute("SET LOCAL lock_timeout = '30s'")
            await transaction.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
            yield transaction

    @asynccontextmanager
    async def _alone(self, tenant: str) -> AsyncIterator[Transaction]:
        async with self._own(tenant) as transaction:
            await transaction.execute(_SQL["alone"], {"tenant": tenant})
            yield transaction

    async def _emptied(self, tenant: str, table: LiteralString) -> int:
        statement = sql.SQL(
            "DELETE FROM {table} WHERE ctid IN (SELECT ctid FROM {table} WHERE tenant_id = %(tenant)s LIMIT %(limit)s)"
        ).format(table=sql.Identifier(table))
        number = 0
        while True:
            async with self._own(tenant) as transaction:
                done = await transaction.execute(statement, {"tenant": tenant, "limit": ERASED_AT_ONCE})
            number += done.rowcount
            if done.rowcount < ERASED_AT_ONCE:
                return number

    async def _forgotten(self, tenant: str) -> int:
        """What Redis has of it. Raises StateUnavailable."""
        number, cursor = 0, 0
        while True:
            found = await self._volatile.run(("SCAN", cursor, "MATCH", f"baton:*:{tenant}:*", "COUNT", SCANNED_AT_ONCE))
            if found is None:
                raise StateUnavailable("Redis is away, and may have copies", 1.0)
            cursor, names = int(found[0][0]), found[0][1]
            if names:
                await self._volatile.run(("DEL", *names))
                number += len(names)
            if cursor == 0:
                return number

    async def _resealed(self, table: SealedTable, key: TenantKey) -> int:
        """Some rows; 0 where there are no more."""
        async with self._own(key.tenant) as transaction:
            rows = await fetch_all(
                transaction,
                _older_rows(table),
                tenant=key.tenant,
                version=key.version,
                limit=RESEALED_AT_ONCE,
                max_bytes=RESEALED_BYTES,
            )
            keys = {row["key_version"] for row in rows}
            by_version = {one: await self._keys.of_version(transaction, key.tenant, one) for one in keys}
            for row in rows:
                old = by_version[row["key_version"]]
                values = await asyncio.to_thread(_sealed_anew, table, row, old, key)
                await transaction.execute(_update(table), values)
            if table.name == "items":
                items = [row["place"] for row in rows]
                await transaction.execute(_SQL["forget_words"], {"tenant": key.tenant, "items": items})
        return len(rows)


def _sealed_anew(table: SealedTable, row: DictRow, old: TenantKey, new: TenantKey) -> DictRow:
    values = {"ctid": row["ctid"], "version": new.version, "tenant": new.tenant}
    for column in table.columns:
        place, text = f"{table.name}/{row['place']}/{column}", row[column]
        values[column] = None if text is None else new.seal(old.unseal(text, place), place)
    return values


def _older_rows(table: SealedTable) -> sql.Composed:
    size = sql.SQL(" + ").join(
        sql.SQL("coalesce(octet_length({}), 0)").format(sql.Identifier(name)) for name in table.columns
    )
    return sql.SQL(
        "SELECT r.ctid::text, {place} AS place, r.{version} AS key_version, {columns} FROM {table} r WHERE r.ctid IN ("
        "SELECT ctid FROM (SELECT ctid, sum({size}) OVER (ROWS UNBOUNDED PRECEDING) - ({size}) AS before FROM ("
        "SELECT r.ctid, {columns} FROM {table} r"
        " WHERE r.tenant_id = %(tenant)s AND r.{version} < %(version)s AND {is_open} LIMIT %(limit)s"
        ") AS page) AS measured WHERE before < %(max_bytes)s) FOR UPDATE OF r"
    ).format(
        place=sql.SQL(table.place),
        version=sql.Identifier(table.key_version),
        columns=sql.SQL(", ").join(map(sql.Identifier, table.columns)),
        table=sql.Identifier(table.name),
        size=size,
        is_open=sql.SQL(table.is_open),
    )


def _update(table: SealedTable) -> sql.Composed:
    columns = [sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in table.columns]
    return sql.SQL("UPDATE {table} SET {columns}, {version} = %(version)s WHERE ctid = %(ctid)s::tid").format(
        table=sql.Identifier(table.name),
        columns=sql.SQL(", ").join(columns),
        version=sql.Identifier(table.key_version),
    )


async def _oldest(transaction: Transaction, table: SealedTable, tenant: str) -> int:
    """Version of a key that something is sealed with; a large number for none."""
    query = sql.SQL("SELECT coalesce(min({version}), 2147483647) AS oldest FROM {table} WHERE tenant_id = %(tenant)s")
    filled = query.format(version=sql.Identifier(table.key_version), table=sql.Identifier(table.name))
    row = await fetch_one(transaction, filled, tenant=tenant)
    assert row is not None
    return int(row["oldest"])


def _no_tenant(tenant: str) -> NotFound:
    return NotFound(f"nothing is stored for a tenant '{tenant}'", None, "tenant_not_found")
