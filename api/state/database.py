"""PostgreSQL as the stores see it: transactions, each in the name of one tenant."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, LiteralString

from psycopg import AsyncConnection, DataError, OperationalError
from psycopg.errors import ForeignKeyViolation
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from cluster.errors import InvalidRequest, NotFound, StateUnavailable

logger = logging.getLogger("baton.state")

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0xBA7011
"""Of PostgreSQL's advisory locks: one process migrates, the others wait."""
EVERY_TENANT = "*"
"""The name in which jobs tend the rows of all tenants."""
CONNECTION_TIMEOUT_S = 2.0
"""A request that must wait longer for a connection is refused."""
PROBE_TIMEOUT_S = 5.0
TRANSACTION_TIMEOUT_S = 10.0
"""Longer than any, but for a network that is cut."""
MIGRATION_TIMEOUT_S = 600.0
"""Of a table with many rows."""
RECONNECT_TIMEOUT_S = 3.0
"""The pool tries again ever more seldom for so long, and then anew, when somebody asks for a connection."""
RETRY_AFTER_S = 2.0
SETTINGS = "-c statement_timeout=5000 -c lock_timeout=2000 -c idle_in_transaction_session_timeout=10000"

Transaction = AsyncConnection[DictRow]


class Database:
    def __init__(self, url: str, max_connections: int) -> None:
        self._pool: AsyncConnectionPool[Transaction] = AsyncConnectionPool(
            url,
            open=False,
            min_size=1,
            max_size=max_connections,
            timeout=CONNECTION_TIMEOUT_S,
            reconnect_timeout=RECONNECT_TIMEOUT_S,
            kwargs={"row_factory": dict_row, "options": SETTINGS, "connect_timeout": 5, "tcp_user_timeout": 10_000},
        )

        self._url = url
        self._probing: AsyncConnection | None = None
        self.reachable_since = math.inf
        """Since when no probe has failed; in seconds of the event loop's clock."""

    async def open(self) -> None:
        """Connections are made, and made anew, in the background: this waits for none."""
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()
        if self._probing is not None:
            await self._probing.close()

    async def probe(self) -> None:
        """Whether PostgreSQL has been there since the last time. On a connection of its own, which breaks when the
        server is lost, and which no tenant keeps busy: a transaction fails for other reasons too, as want of a
        connection or of a lock. Raises StateUnavailable.
        """
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                if self._probing is None:
                    self._probing = await AsyncConnection.connect(self._url, autocommit=True)
                await self._probing.execute("SELECT 1")
            self.reachable_since = min(self.reachable_since, asyncio.get_running_loop().time())
        except (TimeoutError, OperationalError) as error:
            self.reachable_since = math.inf
            if self._probing is not None:
                await self._probing.close()
                self._probing = None
            raise _away(error) from error

    @asynccontextmanager
    async def transaction(self, tenant: str, timeout_s: float = TRANSACTION_TIMEOUT_S) -> AsyncIterator[Transaction]:
        """Sees the rows of this tenant alone; committed at the end, rolled back by an exception.

        Raises:
            InvalidRequest: PostgreSQL cannot store the text: it has NUL characters, or halves of surrogate pairs.
            NotFound: what it adds to has just been purged.
            StateUnavailable: it is away, or too slow.
        """
        try:
            async with asyncio.timeout(timeout_s), self._pool.connection() as connection:
                await connection.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
                yield connection
        except (DataError, UnicodeEncodeError) as error:
            raise InvalidRequest(
                f"the request has text that cannot be stored: {error}", None, "invalid_value"
            ) from error
        except ForeignKeyViolation as error:
            raise NotFound("what the request is about has just been deleted", None, "not_found") from error
        except (PoolTimeout, TimeoutError, OperationalError) as error:
            raise _away(error) from error

    async def migrate(self) -> None:
        """Bring the tables up to date; one process does it, whoever calls.

        Raises:
            StateUnavailable: PostgreSQL is away.
            RuntimeError: a newer Baton has been here.
        """
        known = {int(file.name.partition("_")[0]): file for file in sorted(MIGRATIONS.glob("*.sql"))}
        async with self.transaction(EVERY_TENANT, MIGRATION_TIMEOUT_S) as transaction:
            await transaction.execute("SET LOCAL statement_timeout = 0")
            await transaction.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
            await transaction.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations ("
                "version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
            )
            done = await (await transaction.execute("SELECT version FROM schema_migrations")).fetchall()
            versions = {row["version"] for row in done}
            if unknown := versions - known.keys():
                raise RuntimeError(
                    f"a newer version of Baton has written this database (its schema has version {max(unknown)}, "
                    f"this one knows {max(known)}): use that version, or another database"
                )
            for version, file in known.items():
                if version not in versions:
                    await transaction.execute(file.read_text())
                    await transaction.execute(
                        "INSERT INTO schema_migrations (version, name) VALUES (%s, %s)", [version, file.stem]
                    )


def _away(error: Exception) -> StateUnavailable:
    logger.warning("PostgreSQL is away, or busy: %s", str(error).strip() or type(error).__name__)
    return StateUnavailable("conversations cannot be reached now", RETRY_AFTER_S)


async def fetch_all(transaction: Transaction, query: LiteralString, **values: Any) -> list[DictRow]:
    return await (await transaction.execute(query, values)).fetchall()


async def fetch_one(transaction: Transaction, query: LiteralString, **values: Any) -> DictRow | None:
    return await (await transaction.execute(query, values)).fetchone()
