"""PostgreSQL as the stores see it: transactions, each in the name of one tenant, of whom none keeps the others from
theirs.
"""

import asyncio
import logging
import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString

from psycopg import AsyncConnection, DataError, OperationalError
from psycopg.errors import ForeignKeyViolation
from psycopg.rows import DictRow, dict_row
from psycopg.sql import Composed
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from api.state.postgres.shares import Shares
from cluster.errors import Conflict, InvalidRequest, NotFound, StateUnavailable

logger = logging.getLogger("baton.state")

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0xBA7011
"""Of PostgreSQL's advisory locks: one process migrates, the others wait."""
EVERY_TENANT = "*"
"""The name in which jobs tend the rows of all tenants."""
CONNECTION_TIMEOUT_S = 2.0
"""A request that must wait longer for a connection is refused."""
PROBE_TIMEOUT_S = 5.0
TRANSACTION_TIMEOUT_S = 7.0
"""How long a transaction may take, its wait for a connection included. PostgreSQL ends a statement after 5 s, so that
this is for a server or a network that hangs. Longer has clients wait for nothing then, shorter ends transactions of a
busy server that has accepted them.
"""
CUT_MARGIN_S = 1.0
"""How much later a transaction is cancelled whose connection was cut and that does not end by it."""
MIGRATION_TIMEOUT_S = 600.0
"""Of a table with many rows."""
RECONNECT_TIMEOUT_S = 3.0
"""The pool tries again ever more seldom for so long, and then anew, when somebody asks for a connection."""
RETRY_AFTER_S = 2.0
LARGEST_SHARE = 2
"""One of so many parts of the connections is the most that a tenant may have. A larger part would let a tenant answer
more of its own requests at once, and leave fewer to the others while they wait for its to end.
"""
NEARLY_FULL_BYTES = 256 << 20
"""A tenant that is so near to its quota stores one thing after the other, so that no two take the last room. It is more
than the connections of a replica can store at once. Less could let a tenant have more than its quota; more makes it
slower sooner.
"""
SETTINGS = "-c statement_timeout=5000 -c lock_timeout=2000 -c idle_in_transaction_session_timeout=10000"

_ENTER: LiteralString = "SELECT baton_enter(%(tenant)s, %(lock)s, %(adds)s, %(most)s, %(near)s) AS standing"

Transaction = AsyncConnection[DictRow]
Query = LiteralString | Composed


GONE = frozenset(
    {
        "items_tenant_id_conversation_id_fkey",
        "items_tenant_id_response_id_fkey",
        "responses_tenant_id_conversation_id_fkey",
        "response_events_tenant_id_response_id_fkey",
        "feedback_tenant_id_response_id_fkey",
        "feedback_tenant_id_chat_completion_id_fkey",
    }
)
"""Foreign keys to what clients and purges may delete at any moment."""


class Database:
    def __init__(self, url: str, max_connections: int, quota: Callable[[str], int | None] = lambda _: None) -> None:
        """`quota`: of a tenant, in bytes."""
        self._shares = Shares(max_connections, max(1, max_connections // LARGEST_SHARE))
        self._quota = quota
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
            if self._probing is None:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    self._probing = await AsyncConnection.connect(self._url, autocommit=True)
            with _cut(self._probing, _now() + PROBE_TIMEOUT_S):
                await self._probing.execute("SELECT 1")
            self.reachable_since = min(self.reachable_since, _now())
        except (TimeoutError, OperationalError) as error:
            self.reachable_since = math.inf
            if self._probing is not None:
                await self._probing.close()
                self._probing = None
            raise _away(error) from error

    async def drop_broken(self) -> None:
        """All connections, once the server was lost, before a transaction gets one. Others take their place. They are
        not asked whether they work: a connection may never answer, and cannot be left before it does.
        """
        await self._pool.drain()

    @asynccontextmanager
    async def transaction(
        self, tenant: str, timeout_s: float = TRANSACTION_TIMEOUT_S, *, adds: int = 0, lock: int | None = None
    ) -> AsyncIterator[Transaction]:
        """Sees the rows of this tenant alone; committed at the end, rolled back by an exception. `adds`: how many bytes
        it is to store, as far as its client decides. `lock`: a number that no other transaction has at the same time.

        Raises:
            InvalidRequest: text has NUL characters or halves of surrogate pairs, which cannot be stored; or the tenant
                has no room for what it adds.
            NotFound: what it adds to has just been deleted.
            Conflict: the tenant is being erased.
            StateUnavailable: PostgreSQL is away, or too slow.
        """
        try:
            until = _now() + timeout_s
            async with asyncio.timeout_at(until + CUT_MARGIN_S), self._connected(tenant, until) as connection:
                if tenant == EVERY_TENANT:
                    await connection.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
                else:
                    await self._enter(connection, tenant, adds, lock)
                yield connection
        except (DataError, UnicodeEncodeError) as error:
            if getattr(error, "sqlstate", None) is not None:
                raise  # PostgreSQL's, of what we have made of the request
            raise InvalidRequest(
                f"the request has text that cannot be stored: {error}", None, "invalid_value"
            ) from error
        except ForeignKeyViolation as error:
            if error.diag.constraint_name not in GONE:
                raise
            raise NotFound("what the request is about has just been deleted", None, "not_found") from error
        except (PoolTimeout, TimeoutError, OperationalError) as error:
            raise _away(error) from error

    @asynccontextmanager
    async def _connected(self, tenant: str, until: float) -> AsyncIterator[Transaction]:
        """Within the time that a request may wait for that; cut at `until`, be it in the middle of the commit."""
        async with AsyncExitStack() as held:
            async with asyncio.timeout(CONNECTION_TIMEOUT_S):
                await held.enter_async_context(self._shares.one(tenant))
            connection = await self._pool.getconn()
            held.push_async_callback(self._pool.putconn, connection)
            held.enter_context(_cut(connection, until))
            yield await held.enter_async_context(connection)

    async def _enter(self, connection: Transaction, tenant: str, adds: int, lock: int | None) -> None:
        most = self._quota(tenant) if adds else None
        row = await fetch_one(
            connection, _ENTER, tenant=tenant, lock=lock, adds=adds, most=most, near=NEARLY_FULL_BYTES
        )
        assert row is not None
        if row["standing"] == "erased":
            raise Conflict("all that is stored for this API key is being erased", None, "tenant_erased")
        if row["standing"] == "full":
            raise InvalidRequest(
                f"with this request more than {most} bytes would be stored for this API key: delete something first",
                None,
                "storage_quota_exceeded",
            )

    async def migrate(self) -> None:
        """Bring the tables up to date; one process does it, whoever calls.

        Raises:
            StateUnavailable: PostgreSQL is away.
            RuntimeError: a newer Baton has been here.
        """
        known = {int(file.name.partition("_")[0]): file for file in sorted(MIGRATIONS.glob("*.sql"))}
        async with self.transaction(EVERY_TENANT, MIGRATION_TIMEOUT_S) as transaction:
            await transaction.execute("SET LOCAL statement_timeout = 0")
            await transaction.execute("SET LOCAL lock_timeout = 0")
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


def _now() -> float:
    return asyncio.get_running_loop().time()


@contextmanager
def _cut(connection: AsyncConnection[Any], until: float) -> Iterator[None]:
    """At that time of the event loop, if it comes. A statement that is cancelled asks the server first to end it, and
    waits for the answer: of a server that hangs there is none.
    """
    cutting = asyncio.get_running_loop().call_at(until, _shut_down, connection)
    try:
        yield
    finally:
        cutting.cancel()


def _shut_down(connection: AsyncConnection[Any]) -> None:
    with suppress(OSError, OperationalError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as its_socket:
        its_socket.shutdown(socket.SHUT_RDWR)


def _away(error: Exception) -> StateUnavailable:
    logger.warning("PostgreSQL is away, or busy: %s", str(error).strip() or type(error).__name__)
    return StateUnavailable("conversations cannot be reached now", RETRY_AFTER_S)


async def fetch_all(transaction: Transaction, query: Query, **values: Any) -> list[DictRow]:
    return await (await transaction.execute(query, values)).fetchall()


async def fetch_one(transaction: Transaction, query: Query, **values: Any) -> DictRow | None:
    return await (await transaction.execute(query, values)).fetchone()
